// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/catch.hpp>
#include <support/random_timeline.hpp>
#include <support/seeded.hpp>
#include <support/svg_text.hpp>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace test_io_svg {

using namespace zbpp;
using test::count;
using test::xml_fault;

namespace {

constexpr ticks ms = 1'000'000;

// The widths of all boxes of a class that begins so.
double total_width(std::string_view text, std::string_view style) {
  double sum = 0;
  auto const begin = "<path class=\"" + std::string(style);
  for (auto at = text.find(begin); at != std::string_view::npos; at = text.find(begin, at + 1)) {
    auto const from = text.find("d=\"M", at) + 4;
    auto const to = text.find(" 0H", at);
    if (to == std::string_view::npos || to > text.find('>', at)) continue;  // of the legend
    auto const x0 = std::stod(std::string(text.substr(from, to - from)));
    sum += std::stod(std::string(text.substr(to + 3, 12))) - x0;
  }
  return sum;
}

}  // namespace

TEST_CASE("the checker of this test finds faults", "[io][svg]") {
  CHECK(xml_fault("<a b=\"1\"><c/>x &amp; y</a>\n").empty());
  for (auto const* bad :
       {"",
        "<a>",
        "<a></b>",
        "<a/><b/>",
        "<a b=1/>",
        "<a>&</a>",
        "<a b=\"<\"/>",
        "<a b=\"1\" b=\"2\"/>",
        "x<a/>"})
    CHECK_FALSE(xml_fault(bad).empty());
}

TEST_CASE("every pass is in the picture once, with its times", "[io][svg]") {
  for (int trial = 0; trial < 50; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const order = test::random_schedule(values, 0.3);
    auto const line = test::random_timeline(values, order, 900 * ms);
    auto const text = to_svg({{"a", line}});
    CHECK(xml_fault(text).empty());
    CHECK(count(text, "<title>") == line.size());
    for (auto const& timed : line.all()) {
      auto const title = "<title>" + std::string(to_string(timed.pass.kind)) + " " +
                         std::to_string(timed.pass.microbatch) + " on stage " +
                         std::to_string(timed.pass.stage) + ": ";
      CHECK(count(text, title) == 1);
    }
  }
  timeline const line({{{{pass_kind::backward, 0, 3}, 1'500'000, 22'500'001}}});
  CHECK(
      count(to_svg(line), "<title>BW 3 on stage 0: 1.5 to 22.500001 ms, 21.000001 ms</title>") ==
      1);
}

TEST_CASE("what is hatched and not covered is the bubble", "[io][svg]") {
  problem const problem{placement::v_shape(4), 8, stage_costs{ms, ms, ms}};
  zbpp::problem const flat{placement::linear(4), 8, stage_costs{2 * ms, 2 * ms, 2 * ms}};
  for (auto const& line :
       {simulate(zb_v{}(problem), problem), simulate(one_f_one_b{}(flat), flat)}) {
    auto const text = to_svg(line);
    double covered = 0;
    for (auto const* style : {"F", "B0", "B1", "BW", "W"}) covered += total_width(text, style);
    CHECK(std::abs(1 - covered / total_width(text, "bubble") - bubble_rate(line)) < 1e-3);
  }
}

TEST_CASE("timelines share one scale, one axis and one legend", "[io][svg]") {
  timeline const longer({{{{}, 0, 40 * ms}}});
  timeline const shorter({{{{}, 0, 10 * ms}}});
  auto const text = to_svg({{"long", longer}, {"short", shorter}});
  CHECK(xml_fault(text).empty());
  auto const widths = total_width(text, "F0");
  CHECK(std::abs(widths - 1.25 * total_width(to_svg(longer), "F0")) < 0.1);
  CHECK(text.find(">long<") < text.find(">short<"));
  CHECK(count(text, ">40 ms<") == 1);
  CHECK(count(text, ">F forward<") == 1);
  CHECK(count(text, ">W gradient of weights<") == 0);
}

TEST_CASE("optimizer steps and validations are lines that tell their times", "[io][svg]") {
  timeline const line({{{{}, 0, 10 * ms}}, {{{}, 5 * ms, 15 * ms}}});
  zbpp::rows<zbpp::rank_update> const updates(std::vector<std::vector<zbpp::rank_update>>{
      {{.stepped = 11 * ms, .validated = 20 * ms, .is_early = true}},
      {{.stepped = 16 * ms, .validated = 16 * ms}}});
  auto const text = to_svg(std::vector<named_timeline>{{"two", line, {}, updates}});
  CHECK(xml_fault(text).empty());
  CHECK(count(text, "<title>optimizer step, early: 11 ms</title>") == 1);
  CHECK(count(text, "<title>optimizer step: 16 ms</title>") == 1);
  CHECK(count(text, "<title>norm of all gradients known: 20 ms</title>") == 1);
  CHECK(count(text, ">norm known<") == 1);
  CHECK(count(text, ">20 ms<") == 1);  // the axis goes that far
  CHECK(count(to_svg(line), "norm") == 0);
  CHECK_THROWS_AS(
      to_svg(std::vector<named_timeline>{{"three ranks", timeline({{}, {}, {}}), {}, updates}}),
      error);
  zbpp::rows<zbpp::rank_update> const early(
      std::vector<std::vector<zbpp::rank_update>>{{{.stepped = -1}}, {}});
  CHECK_THROWS_AS(to_svg(std::vector<named_timeline>{{"", line, {}, early}}), error);
}

TEST_CASE("numbers are left out where they do not fit", "[io][svg]") {
  problem const problem{placement::linear(4), 200, stage_costs{ms, ms, ms}};
  auto const text = to_svg(simulate(one_f_one_b{}(problem), problem), {.width = 300});
  CHECK(count(text, ">199</text>") == 0);
  CHECK(count(text, "<title>F 199 on stage") == 4);
  zbpp::problem const little{placement::linear(4), 8, stage_costs{ms, ms, ms}};
  CHECK(count(to_svg(simulate(one_f_one_b{}(little), little)), ">7</text>") == 8);
}

TEST_CASE("names are escaped", "[io][svg]") {
  timeline const line({{{{}, 0, 1}}});
  auto const text = to_svg({{"<a href=\"x\">&\x01\xff</a>", line}});
  CHECK(xml_fault(text).empty());
  CHECK(count(text, "&lt;a href=&quot;x&quot;&gt;&amp; ?&lt;/a&gt;") == 1);
}

TEST_CASE("empty timelines can be drawn", "[io][svg]") {
  CHECK(xml_fault(to_svg(timeline{})).empty());
  CHECK(xml_fault(to_svg(std::vector<named_timeline>{})).empty());
  CHECK(xml_fault(to_svg(timeline({{{{}, 0, 0}}, {}}))).empty());
}

TEST_CASE("what cannot be drawn is refused", "[io][svg]") {
  CHECK_THROWS_AS(to_svg(timeline({{{{}, 2, 1}}})), error);
  CHECK_THROWS_AS(to_svg(timeline{}, {.width = 199}), error);
  CHECK_THROWS_AS(to_svg(timeline{}, {.row_height = 3}), error);
}

TEST_CASE("the passes of a pair have half a row each", "[io][svg]") {
  timeline line;
  line.push({{pass_kind::forward, 0, 1}, 0, 3 * ms});
  line.push({{pass_kind::backward_input, 0, 0, true}, 0, 3 * ms});
  line.push({{pass_kind::backward_weight, 0, 0}, 3 * ms, 4 * ms});
  line.end_row();
  auto const text = to_svg({{"pair", line}}, {.width = 284, .row_height = 22});
  CHECK(xml_fault(text).empty());
  CHECK(text.find("<path class=\"F0\" d=\"M0 0H150v10H0z\">") != std::string::npos);
  CHECK(text.find("<path class=\"B0\" d=\"M0 10H150v10H0z\">") != std::string::npos);
  CHECK(text.find("<path class=\"W0\" d=\"M150 0H200v20H150z\">") != std::string::npos);
}

}  // namespace test_io_svg
