// SPDX-License-Identifier: Apache-2.0
#include <zbpp/io/sweep_svg.hpp>

#include <support/catch.hpp>
#include <support/seeded.hpp>
#include <support/svg_text.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test_io_sweep_svg {

using namespace zbpp;
using test::count;
using test::is_svg;
using test::xml_fault;

namespace {

std::vector<sweep_curve> random_curves(test::seeded_random& values) {
  std::vector<sweep_curve> curves;
  auto const number = values.integer(1, 8);
  for (int c = 0; c < number; ++c) {
    curves.push_back({"curve" + std::to_string(c) + "x", {}});
    auto limit = values.integer(0, 1) == 0 ? bytes{0} : values.integer(0, bytes{1} << 40);
    auto const samples = values.integer(0, 30);
    for (int i = 0; i < samples; ++i, limit += values.integer(1, 1 << 30)) {
      auto const bound = static_cast<double>(values.integer(0, 1000)) / 1000;
      bool const optimal = values.integer(0, 1) == 0;
      curves.back().samples.push_back({limit, optimal ? bound : (1 + bound) / 2, bound, optimal});
    }
  }
  return curves;
}

}  // namespace

TEST_CASE("every sample is a point at its place, filled where it is proved", "[io][sweep]") {
  for (int trial = 0; trial < 60; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const curves = random_curves(values);
    sweep_svg_options const options{
        .width = static_cast<int>(values.integer(320, 1200)),
        .height = static_cast<int>(values.integer(240, 800))};
    auto const text = sweep_to_svg(curves, options);
    CHECK(xml_fault(text).empty());
    CHECK(is_svg(text));
    std::vector<std::pair<double, double>> places;  // of rates, on all curves
    for (auto const& curve : curves) {
      auto const marks = test::marks_of(text, curve.name + ", limit ");
      REQUIRE(marks.size() == curve.samples.size());
      for (std::size_t i = 0; i < marks.size(); ++i) {
        CHECK(marks[i].is_full == curve.samples[i].is_optimal);
        CHECK((marks[i].x > 0 && marks[i].x < options.width));
        CHECK((marks[i].y > 0 && marks[i].y < options.height));
        if (i > 0) CHECK(marks[i].x >= marks[i - 1].x);
        places.emplace_back(curve.samples[i].bubble_rate, marks[i].y);
      }
    }
    // One straight scale for all: a rate that is twice as far from another is drawn so.
    auto const [least, most] = std::minmax_element(places.begin(), places.end());
    if (places.empty() || most->first - least->first < 0.1) continue;
    auto const slope = (most->second - least->second) / (most->first - least->first);
    CHECK(slope < 0);
    for (auto const& [rate, y] : places)
      CHECK(std::abs(least->second + slope * (rate - least->first) - y) < 0.1);
  }
}

TEST_CASE("a bound is a dashed line of its curve's colour", "[io][sweep]") {
  sweep_curve const linear{"linear", {{10, 0.5, 0.4, false}, {20, 0.3, 0.3, true}}};
  sweep_curve const v{"v", {{5, 0.5, 0.4, false}, {20, 0.1, 0.1, true}}};
  auto const text = sweep_to_svg({linear, v, {"one point", {{7, 0.2, 0.2, true}}}});
  CHECK(count(text, "class=\"dashed c0\"") == 1);
  CHECK(count(text, "class=\"dashed c1\"") == 1);
  CHECK(count(text, "class=\"dashed c2\"") == 0);
  CHECK(count(text, ">lower bound</text>") == 1);
  CHECK(count(text, ">linear</text>") == 1);
  CHECK(count(text, ">one point</text>") == 1);
  CHECK(count(text, ">proved optimal</text>") == 1);
  CHECK(count(text, "<title>linear, limit 10: bubble rate 50 %, at least 40 %</title>") == 1);
  CHECK(count(text, "<title>v, limit 20: bubble rate 10 %, proved optimal</title>") == 1);
}

TEST_CASE("the same sweep gives the same bytes", "[io][sweep]") {
  ZBPP_SEEDED(values, 7);
  auto const curves = random_curves(values);
  CHECK(sweep_to_svg(curves) == sweep_to_svg(curves));
}

TEST_CASE(
    "long limits are divided by a power of ten, which stands before their unit", "[io][sweep]") {
  auto const drawn = [](bytes limit, std::string const& unit) {
    return sweep_to_svg(
        {{"v", {{limit, 0.5, 0.5, true}, {2 * limit, 0, 0, true}}}}, {.unit = unit});
  };
  CHECK(count(drawn(10'000, ""), ">memory limit of a rank</text>") == 1);
  CHECK(count(drawn(10'000, ""), ">20000</text>") == 1);
  CHECK(count(drawn(10'000'000'000, "B"), ">memory limit of a rank [10\u2079 B]</text>") == 1);
  CHECK(count(drawn(60'000'000'000, "B"), ">120</text>") == 1);
}

TEST_CASE("names, title and unit are escaped", "[io][sweep]") {
  auto const text =
      sweep_to_svg({{"<a>&\x01", {{1, 0.5, 0.5, true}}}}, {.title = "x<y", .unit = "<&>"});
  CHECK(xml_fault(text).empty());
  CHECK(is_svg(text));
  CHECK(count(text, ">&lt;a&gt;&amp; </text>") == 1);
  CHECK(count(text, ">x&lt;y</text>") == 1);
  CHECK(count(text, "&lt;&amp;&gt;") == 1);
}

TEST_CASE("sweeps without samples can be drawn", "[io][sweep]") {
  CHECK(xml_fault(sweep_to_svg({})).empty());
  CHECK(xml_fault(sweep_to_svg({{"v", {}}})).empty());
  CHECK(xml_fault(sweep_to_svg({{"v", {{0, 0, 0, true}}}})).empty());
  CHECK(xml_fault(sweep_to_svg({{"v", {{bytes{1} << 60, 1, 1, true}}}})).empty());
}

TEST_CASE("samples that are none are refused", "[io][sweep]") {
  auto const refused = [](std::vector<sweep_sample> samples, std::string const& reason) {
    try {
      static_cast<void>(sweep_to_svg({{"v", std::move(samples)}}));
      return false;
    } catch (error const& found) {
      return found.code() == errc::bad_argument &&
             std::string(found.what()).find(reason) != std::string::npos;
    }
  };
  auto const nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(refused({{1, nan, 0, false}}, "bubble rate lies between 0 and 1"));
  CHECK(refused({{1, 1.1, 0, false}}, "bubble rate lies between 0 and 1"));
  CHECK(refused({{1, 0.5, nan, false}}, "lower bound"));
  CHECK(refused({{1, 0.5, -0.1, false}}, "lower bound"));
  CHECK(refused({{-1, 0.5, 0, false}}, "limits ascend"));
  CHECK(refused({{2, 0.5, 0, false}, {1, 0.5, 0, false}}, "'v' at limit 1: limits ascend"));
  CHECK(refused({{std::numeric_limits<bytes>::max(), 0.5, 0, false}}, "2^60"));
  CHECK_THROWS_AS(sweep_to_svg({}, {.width = 319}), error);
  CHECK_THROWS_AS(sweep_to_svg({}, {.height = 239}), error);
}

}  // namespace test_io_sweep_svg
