// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/io/ascii.hpp>
#include <zbpp/io/terminal.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/random_timeline.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace test_io_ascii {

using namespace zbpp;

namespace {

constexpr ticks ms = 1'000'000;

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    auto const end = text.find('\n');
    REQUIRE(end != std::string_view::npos);
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return lines;
}

std::string without_colours(std::string const& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b')
      i = text.find('m', i);
    else
      result += text[i];
  }
  return result;
}

timeline run_1f1b(int ranks, int microbatches) {
  problem const problem{
      placement::linear(ranks), microbatches, stage_costs{2 * ms, 2 * ms, 2 * ms}};
  return simulate(one_f_one_b{}(problem), problem);
}

timeline run_zb_v(int ranks, int microbatches) {
  problem const problem{placement::v_shape(ranks), microbatches, stage_costs{ms, ms, ms}};
  return simulate(zb_v{}(problem), problem);
}

}  // namespace

TEST_CASE("a pair is drawn as F and then what runs beside it", "[io][ascii]") {
  auto rows = test::passes({"0F0 0F1 0B0 0W0 0B1 0W1"}).nested();
  rows[0][2].is_paired = true;
  stage_costs const stage{
      .forward = 2 * ms, .backward_input = 2 * ms, .backward_weight = ms, .overlapped = 3 * ms};
  auto const line =
      simulate(schedule(placement::linear(1), 2, rows), problem(placement::linear(1), 2, stage));
  CHECK("\n" + to_ascii({{"pair", line}}, {.width = 62}) == R"(
pair: cost 9 ms, bubble rate 0.0 %
0|F0          F1       &B0      W0    B1          W1    |

F forward   B gradient of input   W gradient of weights
& together with the F before   . bubble
)");
}

TEST_CASE("timelines are drawn to one scale", "[io][ascii]") {
  CHECK("\n" + to_ascii({{"1F1B", run_1f1b(2, 3)}, {"ZB-V", run_zb_v(2, 3)}}, {.width = 60}) == R"(
1F1B: cost 24 ms, bubble rate 25.0 %
0|F0  F1  ........BW0     F2  BW1     ....BW2     |
1|....F0  BW0     F1  BW1     F2  BW2     ........|

ZB-V: cost 18 ms, bubble rate 0.0 %
0|F0F1F2f0b0w0f1b1w1B0W0f2b2w2B1W1B2W2|
1  |F0f0F1f1b0w0F2B0W0f2b1w1B1b2B2W1w2W2|

F forward   B gradient of input   W gradient of weights
BW both   lower case: 2nd chunk   . bubble
)");
}

TEST_CASE("idle time outside a step of the pipeline is not bubble", "[io][ascii]") {
  problem const problem{placement::linear(3), 5, stage_costs{ms, ms, ms}};
  auto const line = simulate(zb_h2{}(problem), problem);
  REQUIRE(bubble_rate(line) == 0);
  CHECK("\n" + to_ascii(line, {.width = 40, .legend = false}) == R"(
cost 15 ms, bubble rate 0.0 %
0|F0F1F2F3F4B0W0B1W1B2W2B3W3B4W4|
1  |F0F1F2B0F3B1F4B2W0B3W1B4W2W3W4|
2    |F0B0F1B1F2B2F3B3F4B4W0W1W2W3W4|
)");
}

TEST_CASE("what is too short for its number keeps its letter", "[io][ascii]") {
  CHECK("\n" + to_ascii(run_1f1b(2, 12), {.width = 46}) == R"(
cost 78 ms, bubble rate 7.7 %
0|FF..X0FX1FX2FX3FX4FX5FX6FX7FX8FX9FX .X |
1|.FX0FX1FX2FX3FX4FX5FX6FX7FX8FX9FX FX ..|

F forward   BW both   X short BW   . bubble
)");
}

TEST_CASE("no line exceeds the width, whatever the timeline and its name", "[io][ascii]") {
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const order = test::random_schedule(values, values.real(0, 0.5));
    auto const line = test::random_timeline(values, order, values.chance(0.5) ? 3 : 1'000'000'007);
    auto const width = static_cast<int>(values.integer(20, 200));
    std::string const name(static_cast<std::size_t>(values.integer(0, 300)), 'n');
    auto const text = to_ascii({{name, line}, {"", line}}, {.width = width});
    for (auto const& row : lines_of(text)) CHECK(row.size() <= static_cast<std::size_t>(width));
    auto const coloured = to_ascii({{name, line}, {"", line}}, {.width = width, .colour = true});
    CHECK(without_colours(coloured) == text);
  }
}

TEST_CASE("dots are the bubble and nothing else is", "[io][ascii]") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (auto const& line : {run_1f1b(ranks, 6), run_zb_v(ranks, 6)}) {
      auto const unit = line[0][0].end;
      auto const text = to_ascii(line, {.width = 300, .legend = false});
      std::vector<std::string> rows = lines_of(text);
      rows.erase(rows.begin());
      double dots = 0;
      double cells = 0;
      for (auto const& row : rows) {
        auto const begin = row.find('|') + 1;
        auto const length = row.rfind('|') - begin;
        cells += static_cast<double>(length);
        dots += static_cast<double>(std::count(row.begin(), row.end(), '.'));
        CHECK(length % static_cast<std::size_t>(cost(line) / unit) == 0);
      }
      CHECK(std::abs(dots / cells - bubble_rate(line)) < 1e-12);
    }
  }
}

TEST_CASE("each pass is as long as it runs", "[io][ascii]") {
  timeline const line(
      {{{{pass_kind::forward, 0, 7}, 0, 5},
        {{pass_kind::recompute, 0, 7}, 6, 9},
        {{pass_kind::backward_input, 0, 7}, 9, 10},
        {{pass_kind::backward, 0, 12}, 10, 16},
        {{pass_kind::backward, 0, 3}, 16, 18},
        {{pass_kind::backward, 0, 4}, 18, 19}}});
  CHECK(
      to_ascii(line, {.width = 30}) == "cost 19 ns, bubble rate 21.1 %\n"
                                       "0|F7   .R7 BBW12  X3X|\n"
                                       "\n"
                                       "F forward\n"
                                       "B gradient of input   BW both\n"
                                       "R recompute   X short BW\n"
                                       ". bubble\n");
}

TEST_CASE("names are made harmless", "[io][ascii]") {
  auto const text = to_ascii({{"a\nb\x1b[31m\xff\xc3\xa9", run_1f1b(1, 1)}}, {.legend = false});
  CHECK(text.starts_with("a b [31m?\xc3\xa9: cost 6 ms"));
}

TEST_CASE("empty timelines and ranks without passes can be drawn", "[io][ascii]") {
  CHECK(to_ascii(timeline{}, {.legend = false}) == "cost 0 ns, bubble rate 0.0 %\n");
  timeline const line({{{{}, 0, 3}}, {}});
  CHECK(
      to_ascii(line, {.width = 20, .legend = false}) == "cost 3 ns, bubble ra\n"
                                                        "0|F0               |\n"
                                                        "1|.................|\n");
}

TEST_CASE("what makes no sense is refused", "[io][ascii]") {
  auto draw = [](timed_pass first, timed_pass second) {
    return to_ascii(timeline({{first, second}}));
  };
  timed_pass const good{{pass_kind::forward, 0, 0}, 5, 7};
  CHECK_NOTHROW(draw(good, good));
  CHECK_THROWS_AS(draw(good, {{pass_kind::forward, 0, 1}, 9, 8}), error);
  CHECK_THROWS_AS(draw(good, {{pass_kind::forward, 0, 1}, 4, 8}), error);
  CHECK_THROWS_AS(draw({{pass_kind::forward, 0, 0}, -1, 7}, good), error);
  CHECK_THROWS_AS(draw(good, {{pass_kind::forward, -1, 1}, 9, 9}), error);
  CHECK_THROWS_AS(draw(good, {{pass_kind::forward, 0, -1}, 9, 9}), error);
  CHECK_THROWS_AS(draw(good, {{static_cast<pass_kind>(9), 0, 1}, 9, 9}), error);
  CHECK_THROWS_AS(draw(good, {{pass_kind::forward, 0, 1}, 9, ticks{1} << 62}), error);
  CHECK_THROWS_AS(to_ascii(timeline{}, {.width = 19}), error);
}

TEST_CASE("options for standard output suit a drawing", "[io][ascii]") {
  CHECK_NOTHROW(to_ascii(run_1f1b(2, 2), terminal_options()));
}

}  // namespace test_io_ascii
