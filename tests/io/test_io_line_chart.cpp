// SPDX-License-Identifier: Apache-2.0
#include <zbpp/error.hpp>
#include <zbpp/io/detail/chart_scale.hpp>
#include <zbpp/io/line_chart.hpp>

#include <support/catch.hpp>
#include <support/seeded.hpp>
#include <support/svg_text.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace test_io_line_chart {

using namespace zbpp;
using test::count;

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double huge = std::numeric_limits<double>::max();

// A number of any size and sign.
double any_number(test::seeded_random& values) {
  auto const power = static_cast<double>(values.integer(-300, 300));
  auto const value = std::pow(10.0, power) * static_cast<double>(values.integer(0, 999)) / 100;
  return values.integer(0, 6) == 0 ? -value : value;
}

void check_ticks(chart_axis const& axis, double least, double most, int parts) {
  CAPTURE(least, most, parts);
  detail::chart_scale const scale(axis, least, most, parts);
  auto const& ticks = scale.labels();
  REQUIRE(ticks.size() >= 2);
  CHECK(ticks.size() <= static_cast<std::size_t>(2 * parts) + 4);
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    CHECK(std::isfinite(ticks[i].value));
    CHECK(ticks[i].text.size() < 20);
    if (i > 0) CHECK(ticks[i - 1].value < ticks[i].value);
    if (i > 0) CHECK(ticks[i - 1].text != ticks[i].text);
  }
  CHECK(scale.share(ticks.front().value) == 0);
  CHECK(scale.share(ticks.back().value) == 1);
  auto const size = std::max(std::abs(least), std::abs(most));
  auto const slack = 1e-8 * size + 1 / detail::chart_scale::greatest;
  if (size < detail::chart_scale::greatest) {
    CHECK(ticks.front().value <= least + slack);
    CHECK(ticks.back().value >= most - slack);
  }
  for (double const value : {least, most}) {
    CHECK(scale.share(value) >= 0);
    CHECK(scale.share(value) <= 1);
  }
}

std::vector<std::string> labels(chart_axis const& axis, double least, double most, int parts) {
  std::vector<std::string> texts;
  detail::chart_scale const scale(axis, least, most, parts);
  for (auto const& label : scale.labels()) texts.push_back(label.text);
  return texts;
}

line_chart chart_of(std::vector<chart_curve> curves) {
  return {.panels = {{.curves = std::move(curves)}}};
}

chart_curve curve_of(std::string name, std::vector<double> const& values) {
  chart_curve curve{std::move(name)};
  for (auto const value : values)
    curve.points.push_back({static_cast<double>(curve.points.size()), value});
  return curve;
}

void check_refused(line_chart const& chart, std::string const& reason) {
  try {
    static_cast<void>(to_svg(chart));
    FAIL("drawn: " << reason);
  } catch (error const& refused) {
    CHECK(refused.code() == errc::bad_argument);
    CHECK(std::string(refused.what()).find(reason) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("an axis holds its values between a few ascending ticks", "[io][chart]") {
  for (auto const& [least, most] :
       {std::pair{0.0, 0.0},
        {-huge, huge},
        {huge, huge},
        {1e30, std::nextafter(1e30, huge)},
        {-1e-300, 1e-300}})
    check_ticks({}, least, most, 8);
  for (int trial = 0; trial < 2000; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const a = any_number(values);
    auto const b = trial % 5 == 0 ? a : any_number(values);
    auto const parts = static_cast<int>(values.integer(2, 12));
    check_ticks({}, std::min(a, b), std::max(a, b), parts);
    check_ticks({.begins_at_zero = true}, std::min(a, b), std::max(a, b), parts);
    auto const low = std::max(std::min(std::abs(a), std::abs(b)), 1e-150);
    check_ticks({.is_logarithmic = true}, low, std::max({std::abs(a), std::abs(b), low}), parts);
  }
}

TEST_CASE("whole axes are divided at whole numbers", "[io][chart]") {
  for (int trial = 0; trial < 500; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const top = std::int64_t{1} << values.integer(0, 60);
    auto const a = static_cast<double>(values.integer(0, top));
    auto const b = static_cast<double>(values.integer(0, top));
    detail::chart_scale const scale({.is_whole = true}, std::min(a, b), std::max(a, b), 6);
    for (auto const& label : scale.labels()) CHECK(label.value == std::floor(label.value));
    CHECK(scale.labels().front().value >= 0);
  }
}

TEST_CASE("ticks are round and their labels short", "[io][chart]") {
  using texts = std::vector<std::string>;
  CHECK(
      labels({}, 2.3, 5.6, 8) ==
      texts{"2.0", "2.5", "3.0", "3.5", "4.0", "4.5", "5.0", "5.5", "6.0"});
  CHECK(labels({.is_whole = true}, 0, 3, 9) == texts{"0", "1", "2", "3"});
  CHECK(labels({.begins_at_zero = true}, 30, 47, 5) == texts{"0", "10", "20", "30", "40", "50"});
  CHECK(labels({}, 0, 2e9, 2) == texts{"0", "1", "2"});
  CHECK(detail::chart_scale({}, 0, 2e9, 2).exponent() == 9);
  CHECK(labels({}, 0, 4e-7, 2) == texts{"0", "200", "400"});
  CHECK(detail::chart_scale({}, 0, 4e-7, 2).exponent() == -9);
  CHECK(labels({.is_logarithmic = true}, 1, 10, 6) == texts{"1", "2", "5", "10"});
  CHECK(
      labels({.is_logarithmic = true}, 0.02, 900, 6) ==
      texts{"0.01", "0.1", "1", "10", "100", "1000"});
  CHECK(labels({.is_logarithmic = true}, 1e6, 1e8, 3) == texts{"10\u2076", "10\u2077", "10\u2078"});
}

TEST_CASE("a share of a logarithmic axis is a ratio", "[io][chart]") {
  detail::chart_scale const scale({.is_logarithmic = true}, 1, 1000, 4);
  CHECK(std::abs(scale.share(10) - 1.0 / 3) < 1e-12);
  CHECK(std::abs(scale.share(100) - 2.0 / 3) < 1e-12);
}

TEST_CASE("a chart of any numbers is a small picture", "[io][chart]") {
  std::vector<std::vector<double>> const all{
      {},
      {nan},
      {infinity, -infinity},
      {5.5, 6.5e8, 3e38, nan, nan, infinity},
      {5.5, 1e308, -1e308},
      {4.0, 4.0, 4.0},
      {-1, 0, 1e-320},
      std::vector<double>(200, 1e30)};
  for (auto const& values : all)
    for (double const level : {3.1, nan, infinity})
      for (bool const is_overlaid : {false, true})
        for (bool const is_logarithmic : {false, true}) {
          auto chart = chart_of({curve_of("first", values), curve_of("second", values)});
          chart.panels.front().level = chart_level{level, "level"};
          chart.is_overlaid = is_overlaid;
          chart.vertical.is_logarithmic = is_logarithmic;
          auto const text = to_svg(chart);
          CHECK(test::xml_fault(text).empty());
          CHECK(test::is_svg(text));
          CHECK(text.size() < 8000 + (is_overlaid ? 40 : 400) * values.size());
          CHECK(count(text, "<text") < 50);
          CHECK(count(text, "nan") == 0);
          CHECK(count(text, "inf") == 0);
          CHECK(count(text, ">level</text>") == (std::isfinite(level) ? 2 : 0));
        }
}

TEST_CASE("points stand where the scale of their panel puts them", "[io][chart]") {
  for (int trial = 0; trial < 50; ++trial) {
    ZBPP_SEEDED(values, trial);
    line_chart chart;
    chart.width = static_cast<int>(values.integer(320, 1200));
    chart.height = static_cast<int>(values.integer(240, 800));
    auto const panels = static_cast<std::size_t>(values.integer(1, 3));
    for (std::size_t p = 0; p < panels; ++p) {
      chart_curve curve{"curve"};
      for (int i = 0; i < 12; ++i)
        curve.points.push_back(
            {static_cast<double>(values.integer(-50, 50)),
             static_cast<double>(values.integer(-1000, 1000)),
             "panel " + std::to_string(p) + " point",
             values.integer(0, 1) == 0});
      chart.panels.push_back({.curves = {std::move(curve)}});
    }
    auto const text = to_svg(chart);
    double right = 0;
    for (std::size_t p = 0; p < panels; ++p) {
      auto const& points = chart.panels[p].curves.front().points;
      auto const marks = test::marks_of(text, "panel " + std::to_string(p));
      REQUIRE(marks.size() == points.size());
      auto left = infinity;
      auto const before = right;
      for (std::size_t i = 0; i < marks.size(); ++i) {
        left = std::min(left, marks[i].x);
        right = std::max(right, marks[i].x);
        CHECK(marks[i].is_full == !points[i].is_hollow);
        CHECK((marks[i].y > 0 && marks[i].y < chart.height));
        CHECK(marks[i].x < chart.width);
        for (std::size_t k = 0; k < i; ++k) {
          // Straight scales, to the right and upwards.
          auto const wide = (marks[i].x - marks[k].x) * (points[1].x - points[0].x) -
                            (marks[1].x - marks[0].x) * (points[i].x - points[k].x);
          auto const high = (marks[i].y - marks[k].y) * (points[1].y - points[0].y) -
                            (marks[1].y - marks[0].y) * (points[i].y - points[k].y);
          CHECK(std::abs(wide) < 0.02 * 201);
          CHECK(std::abs(high) < 0.02 * 4001);
          if (points[k].y < points[i].y) CHECK(marks[k].y >= marks[i].y);
          if (points[k].x < points[i].x) CHECK(marks[k].x <= marks[i].x);
        }
      }
      CHECK(left > before);
    }
  }
}

TEST_CASE("curves of one name look alike and stand in the legend once", "[io][chart]") {
  line_chart chart;
  for (int p = 0; p < 2; ++p)
    chart.panels.push_back(
        {.title = "panel",
         .curves = {
             curve_of("a", {1, 2}),
             curve_of("b", {2, 3}),
             {.name = "", .points = {{0, 1}, {1, 1}}, .is_dashed = true, .colour_like = "b"}}});
  auto const text = to_svg(chart);
  CHECK(count(text, ">a</text>") == 1);
  CHECK(count(text, ">b</text>") == 1);
  CHECK(count(text, "class=\"line c0\"") == 2);
  CHECK(count(text, "class=\"line c1\"") == 2);
  CHECK(count(text, "class=\"dashed c1\"") == 2);
  CHECK(count(text, ">panel</text>") == 2);
}

TEST_CASE("panels share the power of ten in the title of their axis", "[io][chart]") {
  line_chart chart{.vertical = {.title = "memory", .unit = "B", .begins_at_zero = true}};
  chart.panels.push_back({.curves = {curve_of("a", {0, 4e9})}});
  chart.panels.push_back({.curves = {curve_of("a", {0, 500e6})}});
  auto const text = to_svg(chart);
  CHECK(count(text, ">memory [10\u2079 B]</text>") == 1);
  CHECK(count(text, ">4.0</text>") == 1);
  CHECK(count(text, ">0.50</text>") == 1);
}

TEST_CASE("overlaid curves take turns on top of the first", "[io][chart]") {
  auto chart = chart_of(
      {curve_of("reference", {1, 2}),
       curve_of("b", {1, 2}),
       curve_of("c", {1, 2}),
       curve_of("d", {1, 2})});
  chart.is_overlaid = true;
  auto const text = to_svg(chart);
  CHECK(count(text, "stroke-dasharray:10 20") == 3);
  for (auto const* const offset : {"offset:-0", "offset:-10", "offset:-20"})
    CHECK(count(text, std::string("stroke-dash") + offset + "}") == 1);
  CHECK(count(text, "scale(") == 0);  // no marks
}

TEST_CASE("a point that has no place interrupts its curve", "[io][chart]") {
  auto chart = chart_of({curve_of("a", {1, 2, nan, 3, 4})});
  auto const pieces = [](std::string const& text) {
    auto const from = text.find("class=\"line c0\"");
    auto const outline = text.substr(from, text.find("/>", from) - from);
    return std::pair{count(outline, "M"), count(outline, "L")};
  };
  CHECK(pieces(to_svg(chart)) == std::pair<std::size_t, std::size_t>{2, 2});
  CHECK(count(to_svg(chart), "class=\"c0 full\"") == 1 + 4);
  chart.vertical.is_logarithmic = true;
  chart.panels.front().curves.front().points[2].y = -1;
  CHECK(pieces(to_svg(chart)) == std::pair<std::size_t, std::size_t>{2, 2});
}

TEST_CASE("texts of a chart are escaped", "[io][chart]") {
  line_chart chart{
      .title = "1<2", .vertical = {.title = "a&b", .unit = "<"}, .dashed_meaning = "d<e"};
  chart.panels.push_back(
      {.title = "\"p\"",
       .horizontal = {.title = "h>i", .labels = {{0, "<0>"}, {1, "&"}}},
       .curves = {{"<c>", {{0, 1, "<t>"}}}},
       .level = chart_level{1, "l&m"}});
  auto const text = to_svg(chart);
  CHECK(test::xml_fault(text).empty());
  CHECK(test::is_svg(text));
  for (auto const* const shown :
       {">1&lt;2<",
        ">a&amp;b [&lt;]<",
        ">d&lt;e<",
        ">&quot;p&quot;<",
        ">h&gt;i<",
        ">&lt;0&gt;<",
        ">&lt;c&gt;<",
        ">&lt;t&gt;<",
        ">l&amp;m<"})
    CHECK(count(text, shown) >= 1);
}

TEST_CASE("the same chart gives the same bytes", "[io][chart]") {
  auto const chart = chart_of({curve_of("a", {1, 4, 2}), curve_of("b", {3, 3, 3})});
  CHECK(to_svg(chart) == to_svg(chart));
  CHECK(test::xml_fault(to_svg(line_chart{})).empty());
}

TEST_CASE("charts that cannot be drawn are refused", "[io][chart]") {
  check_refused({.width = 319}, "at least 320 pixels");
  check_refused({.height = 239}, "at least 240 pixels");
  auto const axis = [](std::vector<chart_label> labels, bool is_logarithmic = false) {
    return line_chart{
        .vertical = {
            .title = "loss", .labels = std::move(labels), .is_logarithmic = is_logarithmic}};
  };
  check_refused(axis({{1, "1"}, {1, "2"}}), "label 1 of 'loss' is at 1");
  check_refused(axis({{nan, "1"}}), "label 0 of 'loss' is at nan");
  check_refused(axis({{0, "0"}}, true), "above 0 on a logarithmic axis");
}

}  // namespace test_io_line_chart
