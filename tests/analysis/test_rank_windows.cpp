// SPDX-License-Identifier: Apache-2.0
//
// Each step of the rule of windows on its own, beside a schedule that is known: whatever a step
// concludes must hold of the passes that run there.
#include <zbpp/analysis/detail/bounds/memory_windows.hpp>
#include <zbpp/analysis/detail/bounds/rank_windows.hpp>
#include <zbpp/analysis/detail/bounds/view.hpp>
// What the checks need besides.
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/greedy_auto.hpp>

#include <support/catch.hpp>
#include <support/factors.hpp>
#include <support/planner_problems.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace test_rank_windows {

using zbpp::problem;
using zbpp::ticks;
using zbpp::detail::index;
using zbpp::detail::line_times;
using zbpp::detail::memory_windows;
using zbpp::detail::pass_line;
using zbpp::detail::pass_side;
using zbpp::detail::rank_windows;
using zbpp::test::seeded_random;
using zbpp::test::thinned;

namespace {

// When the passes of one rank run, by line and number.
using pass_starts = std::vector<std::vector<ticks>>;

pass_starts starts_of(zbpp::timeline const& line, problem const& problem, int rank) {
  pass_starts starts(3 * problem.placement().stages_of(rank).size());
  for (auto const& [pass, start, end] : line[rank]) {
    auto const kind = pass.kind == zbpp::pass_kind::forward          ? pass_line::forward
                      : pass.kind == zbpp::pass_kind::backward_input ? pass_line::backward
                                                                     : pass_line::weight;
    starts[index(line_of(kind, problem.placement().chunk_of(pass.stage)))].push_back(start);
  }
  for (auto const& of_line : starts) REQUIRE(of_line.size() == index(problem.microbatches()));
  return starts;
}

// Returns what the windows say wrongly of the passes, in words; nothing where all is true.
std::string fault(rank_windows const& windows, pass_starts const& starts) {
  if (!windows.is_possible()) return "the passes have no time";
  auto const m = windows.microbatches();
  for (int line = 0; line < windows.lines(); ++line)
    for (int n = 0; n < m; ++n) {
      auto const start = starts[index(line)][index(n)];
      auto const name = "pass " + std::to_string(n) + " of line " + std::to_string(line);
      if (windows.start(pass_side::front, line, n) > start) return name + " starts earlier";
      if (windows.start(pass_side::back, line, m - 1 - n) >
          -(start + windows.duration(pass_side::front, line, n)))
        return name + " ends later";
      for (int other = 0; other < windows.lines(); ++other) {
        auto const& others = starts[index(other)];
        auto const before = std::lower_bound(others.begin(), others.end(), start) - others.begin();
        auto const behind = m - before - (other == line ? 1 : 0);
        auto const beside = name + " and those of line " + std::to_string(other);
        if (windows.before(pass_side::front, line, other, n) > before) return beside + ", before";
        if (windows.before(pass_side::back, line, other, m - 1 - n) > behind)
          return beside + ", behind";
      }
    }
  return {};
}

// Windows around the passes, some of them as narrow as can be.
rank_windows around(pass_starts const& starts, line_times times, seeded_random& rng) {
  auto const m = static_cast<int>(starts.front().size());
  rank_windows windows(std::move(times), m);
  auto first = starts.front().front();
  auto last = first;
  for (int line = 0; line < windows.lines(); ++line) {
    first = std::min(first, starts[index(line)].front());
    last = std::max(last, starts[index(line)].back() + windows.duration(pass_side::back, line, 0));
  }
  windows.open(first, last);
  auto const narrow = static_cast<double>(rng.integer(0, 10)) / 10;
  auto const slack = [&] { return rng.chance(narrow) ? 0 : rng.integer(0, (last - first) / 4); };
  for (int line = 0; line < windows.lines(); ++line)
    for (int n = 0; n < m; ++n) {
      auto const start = starts[index(line)][index(n)];
      auto const end = start + windows.duration(pass_side::front, line, n);
      windows.start_from(pass_side::front, line, n, start - slack());
      windows.start_from(pass_side::back, line, m - 1 - n, -end - slack());
    }
  return windows;
}

}  // namespace

TEST_CASE("no step of windows excludes a schedule that is known", "[bounds]") {
  ZBPP_SEEDED(rng, 1);
  zbpp::test::plain_random random(rng.bits());
  int narrowed = 0;
  for (int round = 0; round < thinned(6, 2); ++round)
    for (char kind : {'l', 'o', 'v'}) {
      auto const alike = zbpp::test::uneven_problem(random, kind);
      auto const problem = rng.chance(0.5) ? zbpp::test::with_random_factors(alike, rng) : alike;
      auto const found = zbpp::detail::find_order(problem, {.seconds = 0.08}, 0);
      auto const line = simulate(found.schedule, problem);
      zbpp::detail::bound_terms const terms(problem);
      for (int rank = 0; rank < problem.ranks(); ++rank) {
        INFO("round " << round << ", kind " << kind << ", rank " << rank);
        auto const stages = problem.placement().stages_of(rank);
        auto const starts = starts_of(line, problem, rank);
        auto windows = around(starts, times_of_lines(terms, stages), rng);
        memory_windows memory(terms, stages);
        REQUIRE(fault(windows, starts) == "");
        memory.put_later_stages_first(windows);
        REQUIRE(fault(windows, starts) == "");
        for (int step = 0; step < 8 && windows.take_change(); ++step) {
          for (auto side : {pass_side::front, pass_side::back})
            for (int l = 0; l < windows.lines(); ++l) windows.keep_in_line(side, l);
          REQUIRE(fault(windows, starts) == "");
          windows.find_order();
          REQUIRE(fault(windows, starts) == "");
          memory.put_in_order(windows);
          REQUIRE(fault(windows, starts) == "");
          for (auto side : {pass_side::front, pass_side::back}) {
            windows.start_after_work(
                side, [&](int l, int n) { return memory.forced(windows, side, l, n); });
            REQUIRE(fault(windows, starts) == "");
          }
          if (step > 0) ++narrowed;
        }
      }
    }
  CHECK(narrowed > 0);
}

}  // namespace test_rank_windows
