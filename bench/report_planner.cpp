// SPDX-License-Identifier: Apache-2.0
//
// Prints the tables of docs/benchmarks.md: what the planner reaches on the paper's profiles, on
// uneven pipelines and on a V, beside what is printed elsewhere and beside the lower bound.
// usage: report_planner [COUNT]     with COUNT only that many uneven pipelines of each placement
#include "whole_number.hpp"
#include <zbpp/planner/find_plan.hpp>

#include <support/planner_problems.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <sys/resource.h>
#include <vector>

using zbpp::found_plan;
using zbpp::problem;
using zbpp::test::even_bubble;
using zbpp::test::paper_problem;
using zbpp::test::paper_rows;

namespace {

struct answer {
  found_plan found;
  double seconds;
};

answer plan(problem const& problem, double budget) {
  auto const start = std::chrono::steady_clock::now();
  auto found = zbpp::find_plan(problem, {.placement = problem.placement(), .seconds = budget});
  std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
  return {std::move(found), took.count()};
}

double gap(found_plan const& found) {
  return 100 * (static_cast<double>(found.cost) / static_cast<double>(found.bound.cost) - 1);
}

void table_5() {
  constexpr std::array zb_1p{
      .1585, .1242, .0674, .1323, .1045, .0554, .1397, .1088, .0576, .1421, .1106, .0594};
  constexpr std::array zb_2p{
      .0433, .0039, .0026, .0029, .0022, .0010, .0066, .0054, .0028, .0038, .0029, .0018};
  std::puts("| model | p | m | ZB-1p in the paper | zbpp at 1p | bound | ZB-2p in the paper | "
            "zbpp at 2p | bound |");
  std::puts("|---|---|---|---|---|---|---|---|---|");
  for (std::size_t i = 0; i < paper_rows.size(); ++i) {
    auto const& row = paper_rows[i];
    auto const tight = paper_problem(row, 1);
    auto const wide = paper_problem(row, 2);
    auto const a = plan(tight, 2.5).found;
    auto const b = plan(wide, 2.5).found;
    std::printf(
        "| %s | %d | %d | %.4f | %.4f | %.4f | %.4f | %.4f | %.4f |\n",
        row.model,
        row.ranks,
        row.microbatches,
        zb_1p[i],
        even_bubble(tight, a.cost),
        even_bubble(tight, a.bound.cost),
        zb_2p[i],
        even_bubble(wide, b.cost),
        even_bubble(wide, b.bound.cost));
  }
}

// Bubble rate of each cell; `*` where it is proved, else how far the bound is below, in percent.
void sweep(double budget, bool jitter) {
  zbpp::test::plain_random random(11);
  std::printf("| model | m |");
  for (double limit : zbpp::test::sweep_limits) std::printf(" %gp |", limit);
  std::printf("\n|---|---|");
  for (std::size_t i = 0; i < zbpp::test::sweep_limits.size(); ++i) std::printf("---|");
  std::printf("\n");
  int proved = 0;
  double worst = 0;
  std::vector<double> times;
  for (auto const& row : paper_rows) {
    std::printf("| %s | %d |", row.model, row.microbatches);
    for (double limit : zbpp::test::sweep_limits) {
      auto const what = paper_problem(row, limit, jitter ? &random : nullptr);
      auto const [found, seconds] = plan(what, budget);
      times.push_back(seconds);
      worst = std::max(worst, gap(found));
      double work = 0;  // bubble rate of uneven ranks: 1 - all work / (ranks * cost)
      for (int s = 0; s < what.stages(); ++s) {
        auto const& c = what.costs(s);
        work += static_cast<double>(c.forward + c.backward_input + c.backward_weight);
      }
      work *= static_cast<double>(what.microbatches()) / what.ranks();
      std::printf(" %.4f", 1 - work / static_cast<double>(found.cost));
      if (found.is_optimal()) {
        ++proved;
        std::printf("* |");
      } else {
        std::printf(" (%.3f%%) |", gap(found));
      }
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  std::sort(times.begin(), times.end());
  auto const over = std::count_if(times.begin(), times.end(), [](double t) { return t > 1; });
  std::printf(
      "\n%d of 108 proved, widest gap %.3f %%; median time %.3f s, longest %.2f s, %d over a "
      "second\n",
      proved,
      worst,
      times[times.size() / 2],
      times.back(),
      static_cast<int>(over));
}

rusage use_of_this_process() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return use;
}

// Seconds that this process has had of a processor.
double cpu_time() {
  auto const time = use_of_this_process().ru_utime;
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

void uneven(char kind, char const* name, int cases, double budget) {
  zbpp::test::plain_random random(20);
  std::vector<double> gaps;
  int proved = 0;
  auto const begun = cpu_time();
  for (int i = 0; i < cases; ++i) {
    auto const found = plan(zbpp::test::uneven_problem(random, kind), budget).found;
    gaps.push_back(gap(found));
    proved += found.is_optimal() ? 1 : 0;
  }
  double sum = 0;
  for (double g : gaps) sum += g;
  std::sort(gaps.begin(), gaps.end());
  std::printf(
      "| %s | %d | %.1f %% | %.3f %% | %.2f %% | %.1f s |\n",
      name,
      cases,
      100.0 * proved / cases,
      sum / cases,
      gaps.back(),
      cpu_time() - begun);
  std::fflush(stdout);
}

void uneven_table(int cases) {
  std::puts("| placement | problems | proved | mean gap | widest gap | CPU time |");
  std::puts("|---|---|---|---|---|---|");
  uneven('l', "linear", cases, 2.5);
  uneven('v', "V", cases, 2.5);
  uneven('o', "looped, 2 chunks", cases, 2.5);
}

void on_v() {
  std::puts("| model | m | at 1p | bound | at 1.5p | bound |");
  std::puts("|---|---|---|---|---|---|");
  for (std::size_t row : {std::size_t{3}, std::size_t{6}, std::size_t{9}, std::size_t{0}}) {
    auto const tight = zbpp::test::paper_problem_on_v(paper_rows[row], 1);
    auto const wide = zbpp::test::paper_problem_on_v(paper_rows[row], 1.5);
    auto const a = plan(tight, 16).found;
    auto const b = plan(wide, 16).found;
    std::printf(
        "| %s | %d | %.4f | %.4f | %.4f | %.4f |\n",
        paper_rows[row].model,
        paper_rows[row].microbatches,
        even_bubble(tight, a.cost),
        even_bubble(tight, a.bound.cost),
        even_bubble(wide, b.cost),
        even_bubble(wide, b.bound.cost));
  }
}

void on_v_below_1p() {
  std::puts("| model | p | m | limit | cost | bound | gap |");
  std::puts("|---|---|---|---|---|---|---|");
  struct limits {
    std::size_t row;
    std::vector<int> microbatches;  // that a rank has room for
  };
  for (auto const& [row, rooms] :
       {limits{0, {4, 5, 6, 7}},
        limits{3, {4, 5, 6, 7}},
        limits{6, {7, 8, 9, 10, 12, 14}},
        limits{9, {12, 18, 24}}})
    for (int const room : rooms) {
      auto const& model = paper_rows[row];
      auto const limit = static_cast<double>(room) / model.ranks;
      auto const found = plan(zbpp::test::paper_problem_on_v(model, limit), 2.5).found;
      std::printf(
          "| %s | %d | %d | %d/%d p | %.1f ms | %.1f ms | %.2f %% |\n",
          model.model,
          model.ranks,
          model.microbatches,
          room,
          model.ranks,
          static_cast<double>(found.cost) / 1e6,
          static_cast<double>(found.bound.cost) / 1e6,
          gap(found));
    }
}

void below_1p() {
  std::puts("| problem | limit | bubble | bound |");
  std::puts("|---|---|---|---|");
  zbpp::stage_costs even{.forward = 1000000, .backward_input = 1000000, .backward_weight = 1000000};
  even.activation = 1000;
  even.weight_gradient_input = 500;
  for (zbpp::bytes room : {6, 4}) {
    problem const problem(zbpp::placement::linear(8), 24, even, 0, {room * 1000});
    auto const found = plan(problem, 2.5).found;
    std::printf(
        "| F = B = W, p = 8, m = 24 | %gp | %.4f | %.4f |\n",
        static_cast<double>(room) / 8,
        even_bubble(problem, found.cost),
        even_bubble(problem, found.bound.cost));
  }
  auto const what = paper_problem(paper_rows[6], 0.75);
  auto const found = plan(what, 2.5).found;
  std::printf(
      "| 14.6B, p = 16, m = 48 | 0.75p | %.4f | %.4f |\n",
      even_bubble(what, found.cost),
      even_bubble(what, found.bound.cost));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    auto const count = zbpp::bench::whole_number(argv[1]).value_or(0);
    if (argc > 2 || count == 0) {
      std::fputs("usage: report_planner [COUNT]; COUNT is a whole number above 0\n", stderr);
      return 2;
    }
    uneven_table(count);
    return 0;
  }
  std::puts("Table 5, budget 2.5 s\n");
  table_5();
  std::puts("\nMemory sweep, budget 40 s\n");
  sweep(40, false);
  std::puts("\nMemory sweep, each time changed by up to 1 %, budget 40 s\n");
  sweep(40, true);
  std::puts("\nBelow the memory of 1F1B, budget 2.5 s\n");
  below_1p();
  std::puts("\nOn a V, budget 16 s\n");
  on_v();
  std::puts("\nOn a V below the memory of 1F1B, budget 2.5 s\n");
  on_v_below_1p();
  std::puts("\nUneven pipelines, budget 2.5 s\n");
  uneven_table(500);
  std::printf("\npeak memory %ld MiB\n", use_of_this_process().ru_maxrss / 1024);
}
