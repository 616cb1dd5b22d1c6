// SPDX-License-Identifier: Apache-2.0
#include <zbpp/io/detail/round_axis.hpp>
#include <zbpp/io/sweep_svg.hpp>

#include <support/catch.hpp>
#include <support/seeded.hpp>

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

namespace {

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t result = 0;
  for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1))
    ++result;
  return result;
}

// Whether every element that is opened is closed, innermost first.
bool nests(std::string_view text) {
  std::vector<std::string_view> open;
  for (auto at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    auto const tag = text.substr(at + 1, text.find('>', at) - at - 1);
    if (tag.ends_with('/')) continue;
    if (!tag.starts_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    } else {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    }
  }
  return open.empty();
}

// Whether every element is one that a viewer of SVG draws: it leaves out what it does not know.
bool is_svg(std::string_view text) {
  constexpr std::array<std::string_view, 7> known{
      "svg", "style", "rect", "text", "path", "circle", "title"};
  for (auto at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    auto name = text.substr(at + 1);
    if (name.starts_with('/')) name.remove_prefix(1);
    name = name.substr(0, name.find_first_of(" />"));
    if (std::find(known.begin(), known.end(), name) == known.end()) return false;
  }
  return true;
}

struct mark {
  double x = 0;
  double y = 0;
  bool is_full = false;
};

// The points of a drawing in which the titles of a curve begin with its name.
std::vector<mark> marks_of(std::string_view text, std::string const& name) {
  std::vector<mark> marks;
  auto const title = "<title>" + name + ", limit ";
  for (auto at = text.find(title); at != std::string_view::npos; at = text.find(title, at + 1)) {
    auto const tag = text.substr(text.rfind("<path", at), at - text.rfind("<path", at));
    auto const from = tag.find("translate(") + 10;
    auto const space = tag.find(' ', from);
    marks.push_back(
        {std::stod(std::string(tag.substr(from, space - from))),
         std::stod(std::string(tag.substr(space + 1))),
         tag.find(" full\"") != std::string_view::npos});
  }
  return marks;
}

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

TEST_CASE("an axis holds its values and is divided at round numbers", "[io][sweep]") {
  for (int trial = 0; trial < 2000; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const top = std::int64_t{1} << values.integer(0, 60);
    auto const a = values.integer(0, top);
    auto const b = trial % 5 == 0 ? a : values.integer(0, top);
    auto const parts = static_cast<int>(values.integer(2, 12));
    detail::round_axis const axis(std::min(a, b), std::max(a, b), parts);
    CHECK(axis.low >= 0);
    CHECK(axis.low <= std::min(a, b));
    CHECK(axis.high >= std::max(a, b));
    CHECK(axis.high > axis.low);
    CHECK(axis.low % axis.step == 0);
    CHECK(axis.high % axis.step == 0);
    CHECK((axis.high - axis.low) / axis.step <= parts + 1);
    auto digit = axis.step;
    while (digit % 10 == 0) digit /= 10;
    CHECK((digit == 1 || digit == 2 || digit == 5));
  }
}

TEST_CASE("every sample is a point at its place, filled where it is proved", "[io][sweep]") {
  for (int trial = 0; trial < 60; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const curves = random_curves(values);
    sweep_svg_options const options{
        .width = static_cast<int>(values.integer(320, 1200)),
        .height = static_cast<int>(values.integer(240, 800))};
    auto const text = sweep_to_svg(curves, options);
    CHECK(nests(text));
    CHECK(is_svg(text));
    std::vector<std::pair<double, double>> places;  // of rates, on all curves
    for (auto const& curve : curves) {
      auto const marks = marks_of(text, curve.name);
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
  CHECK(count(text, "class=\"bound c0\"") == 1);
  CHECK(count(text, "class=\"bound c1\"") == 1);
  CHECK(count(text, "class=\"bound c2\"") == 0);
  CHECK(text.find("stroke-dasharray") != std::string::npos);
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

TEST_CASE("long limits are told in millions and more, with their unit", "[io][sweep]") {
  auto const drawn = [](bytes limit, std::string const& unit) {
    return sweep_to_svg(
        {{"v", {{limit, 0.5, 0.5, true}, {2 * limit, 0, 0, true}}}}, {.unit = unit});
  };
  CHECK(count(drawn(10'000, ""), ">memory limit of a rank</text>") == 1);
  CHECK(count(drawn(10'000, ""), ">20000</text>") == 1);
  CHECK(count(drawn(10'000'000'000, "B"), ">memory limit of a rank [10\u2079 B]</text>") == 1);
  CHECK(count(drawn(10'000'000'000, "B"), ">20</text>") == 1);
}

TEST_CASE("names, title and unit are escaped", "[io][sweep]") {
  auto const text =
      sweep_to_svg({{"<a>&\x01", {{1, 0.5, 0.5, true}}}}, {.title = "x<y", .unit = "<&>"});
  CHECK(nests(text));
  CHECK(is_svg(text));
  CHECK(count(text, ">&lt;a&gt;&amp; </text>") == 1);
  CHECK(count(text, ">x&lt;y</text>") == 1);
  CHECK(count(text, "&lt;&amp;&gt;") == 1);
}

TEST_CASE("sweeps without samples can be drawn", "[io][sweep]") {
  CHECK(nests(sweep_to_svg({})));
  CHECK(nests(sweep_to_svg({{"v", {}}})));
  CHECK(nests(sweep_to_svg({{"v", {{0, 0, 0, true}}}})));
  CHECK(nests(sweep_to_svg({{"v", {{bytes{1} << 60, 1, 1, true}}}})));
}

TEST_CASE("what cannot be drawn as a sweep is refused", "[io][sweep]") {
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
