// SPDX-License-Identifier: Apache-2.0
//
// The rule of windows, which only raise_bound uses, and what it adds up work with.
#include <zbpp/analysis/bounds.hpp>
// What the checks need besides.
#include <zbpp/analysis/detail/bounds/work_tree.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/greedy_auto.hpp>

#include <support/catch.hpp>
#include <support/exhaustive.hpp>
#include <support/planner_problems.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/tiny_optima.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace test_bounds_windows {

using namespace zbpp;
using namespace zbpp::test;

namespace {

bool is_claimed(ticks cost, problem const& problem) {
  return zbpp::test::is_claimed(bound_rule::windows, cost, problem);
}

}  // namespace

TEST_CASE("no order of a tiny problem costs less than its raised bound", "[bounds][long]") {
  int tight = 0;
  int raised = 0;
  auto const problems = zbpp::test::for_each_tiny_optimum(
      thinned(1200, 60),
      zbpp::test::tiny_placements::any,
      [&](problem const& problem, ticks best, seeded_random& rng) {
        CHECK_FALSE(is_claimed(best + 1, problem));
        auto const first = lower_bound(problem);
        // No schedule that costs the least is known, only one that costs more.
        auto const bound = raise_bound(first, best + rng.integer(0, 9), problem);
        CHECK(bound.cost >= first.cost);
        CHECK(bound.cost <= best);
        CHECK(holds(bound, problem));
        if (bound.cost == best) ++tight;
        if (bound.cost > first.cost) ++raised;
        if (first.cost < best)
          CHECK((raise_bound(first, best, problem).cost == best) == is_claimed(best, problem));
      });
  INFO(problems << " problems, " << tight << " tight, " << raised << " raised");
  CHECK(problems > thinned(800, 30));
  CHECK(tight > 0.85 * problems);
  CHECK(raised > 0.15 * problems);
}

// Larger problems have no exhaustive search beside them, but schedules that no bound may pass.
TEST_CASE("no bound is raised above the cost of a schedule that is known", "[bounds][long]") {
  auto const check = [](problem const& problem) {
    auto const found = zbpp::detail::find_order(problem, {.seconds = 0.4}, 0);
    CHECK(cost(zbpp::simulate(found.schedule, problem)) == found.cost);
    constexpr double effort = 3e5;
    for (double share : {1.0, 1.03}) {
      auto const aim = static_cast<ticks>(static_cast<double>(found.cost) * share) + 1;
      INFO("p " << problem.ranks() << ", m " << problem.microbatches() << ", aim " << aim);
      CHECK(raise_bound(lower_bound(problem), aim, problem, effort).cost <= found.cost);
    }
  };
  constexpr ticks time = 5'000'000;
  stage_costs const unit{
      .forward = time,
      .backward_input = time,
      .backward_weight = time,
      .activation = 500,
      .weight_gradient_input = 250};
  std::vector<bytes> const limits{8000, 8000, 8000, 8000, 7500, 6500, 5500, 4500};
  check({placement::looped(8, 2), 24, unit, 2 * time, limits});
  zbpp::test::plain_random random(7);
  for (int i = 0; i < thinned(4, 0); ++i)
    for (char kind : {'o', 'v'}) check(zbpp::test::uneven_problem(random, kind));
}

// Rank 0 would have to run its first B of stage 2 at 21 and then never idle; but rank 1 can send
// the next B no earlier than at 30, and rank 0 has but one W until then.
TEST_CASE("a rank idles where what it waits for comes too late for its W", "[bounds]") {
  stage_costs const costs{.forward = 4, .backward_input = 5, .backward_weight = 3};
  problem const problem(placement::looped(2, 2), 2, costs);
  auto const bound = lower_bound(problem);
  CHECK(bound.cost == 53);
  auto const raised = raise_bound(bound, 60, problem);
  CHECK(raised.cost == 54);
  CHECK(raised.rule == bound_rule::windows);
  CHECK(holds(raised, problem));
  CHECK_FALSE(is_claimed(55, problem));
  CHECK(zbpp::test::optimal_cost(problem) == raised.cost);
}

TEST_CASE("more effort never lowers a raised bound", "[bounds][long]") {
  zbpp::test::plain_random random(20);
  int raised = 0;
  for (int i = 0; i < thinned(80, 20); ++i) {
    auto const problem = zbpp::test::uneven_problem(random, 'o');
    if (problem.microbatches() > 2 * problem.ranks()) continue;  // there waits make up the most
    auto const first = lower_bound(problem);
    auto const cost = first.cost + first.cost / 16;  // more than is known to be needed
    auto last = first;
    for (double effort : thinned<std::vector<double>>({0, 1e4, 1e5, 3e5}, {0, 1e4, 1e5})) {
      auto const bound = raise_bound(first, cost, problem, effort);
      INFO("problem " << i << ", effort " << effort);
      CHECK(bound.cost >= last.cost);
      CHECK(bound.cost <= cost);
      last = bound;
    }
    if (last.cost == first.cost) continue;
    ++raised;
    CHECK(last.rule == bound_rule::windows);
    CHECK(holds(last, problem));
    for (int rank : {-1, last.rank + 1, problem.ranks()}) {
      auto wrong = last;
      wrong.rank = rank;
      CHECK_FALSE(holds(wrong, problem));
    }
  }
  CHECK(raised > thinned(5, 0));
}

TEST_CASE("a bound that needs no raising stays as it is", "[bounds]") {
  stage_costs const costs{.forward = 4, .backward_input = 5, .backward_weight = 3};
  // Rank 1 begins behind two stages of rank 0, or nobody knows when a rank begins.
  for (auto const& placement : {placement::custom({0, 0, 1, 1}), placement::custom({0, 1, 1, 2})}) {
    problem const problem(placement, 3, costs);
    INFO(placement.name());
    CHECK_FALSE(is_claimed(1, problem));
    CHECK(raise_bound(lower_bound(problem), 1000, problem) == lower_bound(problem));
  }
  problem const linear(placement::linear(3), 3, costs);
  auto const bound = lower_bound(linear);
  CHECK(raise_bound(bound, bound.cost, linear) == bound);
  CHECK(raise_bound(bound, bound.cost - 1, linear) == bound);
  CHECK(raise_bound(bound, 1000, linear, 0) == bound);
}

TEST_CASE("claims about windows can name any cost without harm", "[bounds]") {
  constexpr auto most = std::numeric_limits<ticks>::max();
  stage_costs costs{.forward = 3, .backward_input = 4, .backward_weight = 2, .activation = 10};
  costs.weight_gradient_input = 4;
  for (auto const& placement :
       {placement::linear(2), placement::v_shape(2), placement::looped(2, 2)})
    for (bytes limit : {0, 25, 40, 1000}) {
      problem const problem(placement, 4, costs, 1, {limit});
      for (ticks cost : {most, most / 2, most / 4, most / 4 - 1})
        CHECK_FALSE(is_claimed(cost, problem));
      CHECK(is_claimed(1, problem));
    }
}

TEST_CASE("windows of the greatest times and sizes do not overflow", "[bounds][long]") {
  constexpr auto most = std::numeric_limits<std::int64_t>::max() / 2;
  ZBPP_SEEDED(rng, 7);
  for (int round = 0; round < thinned(200, 20); ++round) {
    auto const placement = zbpp::test::random_placement(rng, zbpp::test::tiny_placements::any);
    auto const m = static_cast<int>(rng.integer(1, 6));
    auto const share = most / m / placement.stages() / 8;
    auto const cut = [&](std::int64_t whole) { return rng.integer(0, whole); };
    std::vector<stage_costs> stages;
    for (int s = 0; s < placement.stages(); ++s) {
      stage_costs c;
      c.forward = cut(share / 4);
      c.backward_input = cut(share / 4);
      c.backward_weight = cut(share / 4);
      c.activation = 8 * (share - share / 1024);
      c.weight_gradient_input = cut(c.activation);
      stages.push_back(c);
    }
    std::vector<bytes> limits;
    if (round % 3 != 0) limits = {rng.integer(0, std::numeric_limits<bytes>::max())};
    problem const problem(placement, m, stages, cut(share / 16), limits);
    auto const bound = lower_bound(problem);
    auto const raised = raise_bound(bound, bound.cost + cut(bound.cost), problem);
    INFO("round " << round);
    CHECK(raised.cost >= bound.cost);
    CHECK(holds(raised, problem));
  }
}

// Passes one after another, each from its earliest start on, in the order of these.
TEST_CASE("a work tree adds up passes as a rank runs them", "[bounds]") {
  using zbpp::detail::work_tree;
  ZBPP_SEEDED(rng, 3);
  work_tree tree;
  for (int round = 0; round < thinned(200, 20); ++round) {
    auto const count = static_cast<std::size_t>(rng.integer(1, 20));
    std::vector<ticks> starts;
    for (std::size_t i = 0; i < count; ++i) starts.push_back(rng.integer(-20, 20));
    std::sort(starts.begin(), starts.end());
    std::vector<std::optional<ticks>> durations(count);
    std::vector<std::size_t> places(count);
    for (std::size_t i = 0; i < count; ++i) places[i] = i;
    rng.shuffle(std::span(places));
    tree.clear(count);
    auto const check = [&](work_tree::part const& part, std::size_t from, std::size_t to) {
      auto end = std::numeric_limits<ticks>::min();
      ticks work = 0;
      for (auto i = from; i < to; ++i)
        if (durations[i]) {
          end = std::max(end, starts[i]) + *durations[i];
          work += *durations[i];
        }
      CHECK(part.work == work);
      CHECK(part.end == end);
    };
    for (auto const place : places) {
      durations[place] = rng.integer(0, 9);
      tree.add(place, starts[place], *durations[place]);
      check(tree.all(), 0, count);
      auto const at = static_cast<std::size_t>(rng.integer(0, static_cast<std::int64_t>(count)));
      auto const [before, after] = tree.split(at);
      check(before, 0, at);
      check(after, at, count);
    }
  }
}

}  // namespace test_bounds_windows
