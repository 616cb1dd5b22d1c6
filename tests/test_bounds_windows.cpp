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
#include <support/tiny_problem.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace test_bounds_windows {

using zbpp::bound_rule;
using zbpp::bytes;
using zbpp::cost_bound;
using zbpp::holds;
using zbpp::lower_bound;
using zbpp::placement;
using zbpp::problem;
using zbpp::raise_bound;
using zbpp::stage_costs;
using zbpp::ticks;
using zbpp::test::seeded_random;
using zbpp::test::thinned;

namespace {

bool is_claimed(ticks cost, problem const& problem) {
  cost_bound claim{cost, bound_rule::windows};
  for (; claim.rank < problem.ranks(); ++claim.rank)
    if (holds(claim, problem)) return true;
  return false;
}

// All whose first stages are on a rank each.
placement random_placement(seeded_random& rng) {
  auto const last = [&] { return static_cast<int>(rng.integer(0, 2)); };
  switch (rng.integer(0, 6)) {
    case 0: return placement::linear(static_cast<int>(rng.integer(1, 4)));
    case 1: return placement::looped(2, 2);
    case 2: return placement::looped(2, 3);
    case 3: return placement::looped(3, 2);
    case 4: return placement::v_shape(static_cast<int>(rng.integer(2, 3)));
    case 5: return placement::custom({0, 1, static_cast<int>(rng.integer(0, 1))});
    default: return placement::custom({0, 1, 2, last(), last()});
  }
}

int most_microbatches(placement const& on) { return on.stages() <= 4 ? 5 : 3; }

}  // namespace

TEST_CASE("no order of a tiny problem costs less than its raised bound", "[bounds]") {
  ZBPP_SEEDED(rng, 1);
  int problems = 0;
  int tight = 0;
  int raised = 0;
  for (int round = 0; round < thinned(3000, 300); ++round) {
    auto const where = random_placement(rng);
    auto const m = static_cast<int>(rng.integer(1, most_microbatches(where)));
    auto const what = rng.chance(0.25) ? zbpp::test::tiny_problem_with_gradients(rng, where, m)
                                       : zbpp::test::tiny_problem(rng, where, m);
    auto const best = zbpp::test::find_optimum(what, {.nodes = 20'000});
    if (!best.complete || !best.cost) continue;
    INFO("round " << round << ", " << where.name() << ", m = " << m);
    ++problems;
    CHECK_FALSE(is_claimed(*best.cost + 1, what));
    auto const first = lower_bound(what);
    // No schedule that costs the least is known, only one that costs more.
    auto const bound = raise_bound(first, *best.cost + rng.integer(0, 9), what);
    CHECK(bound.cost >= first.cost);
    CHECK(bound.cost <= *best.cost);
    CHECK(holds(bound, what));
    if (bound.cost == *best.cost) ++tight;
    if (bound.cost > first.cost) ++raised;
    if (first.cost < *best.cost)
      CHECK(
          (raise_bound(first, *best.cost, what).cost == *best.cost) ==
          is_claimed(*best.cost, what));
  }
  INFO(problems << " problems, " << tight << " tight, " << raised << " raised");
  CHECK(problems > thinned(2000, 180));
  CHECK(tight > 0.85 * problems);
  CHECK(raised > 0.15 * problems);
}

// Larger problems have no exhaustive search beside them, but schedules that no bound may pass.
TEST_CASE("no bound is raised above the cost of a schedule that is known", "[bounds]") {
  auto const check = [](problem const& what) {
    auto const found = zbpp::greedy_auto{.search = {.seconds = 0.05}}.find(what);
    CHECK(cost(zbpp::simulate(found.schedule, what)) == found.cost);
    constexpr double effort = 3e5;
    for (double share : {1.0, 1.03}) {
      auto const aim = static_cast<ticks>(static_cast<double>(found.cost) * share) + 1;
      INFO("p " << what.ranks() << ", m " << what.microbatches() << ", aim " << aim);
      CHECK(raise_bound(lower_bound(what), aim, what, effort).cost <= found.cost);
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
  for (int i = 0; i < thinned(4, 1); ++i)
    for (char kind : {'o', 'v'}) check(zbpp::test::uneven_problem(random, kind));
}

// Rank 0 would have to run its first B of stage 2 at 21 and then never idle; but rank 1 can send
// the next B no earlier than at 30, and rank 0 has but one W until then.
TEST_CASE("a rank idles where what it waits for comes too late for its W", "[bounds]") {
  stage_costs const costs{.forward = 4, .backward_input = 5, .backward_weight = 3};
  problem const what(placement::looped(2, 2), 2, costs);
  auto const bound = lower_bound(what);
  CHECK(bound.cost == 53);
  auto const raised = raise_bound(bound, 60, what);
  CHECK(raised.cost == 54);
  CHECK(raised.rule == bound_rule::windows);
  CHECK(holds(raised, what));
  CHECK_FALSE(is_claimed(55, what));
  CHECK(zbpp::test::optimal_cost(what) == raised.cost);
}

TEST_CASE("more effort never lowers a raised bound", "[bounds]") {
  zbpp::test::plain_random random(20);
  int raised = 0;
  for (int i = 0; i < thinned(150, 60); ++i) {
    auto const what = zbpp::test::uneven_problem(random, 'o');
    if (what.microbatches() > 2 * what.ranks()) continue;  // there waits make up the most
    auto const first = lower_bound(what);
    auto const cost = first.cost + first.cost / 16;  // more than is known to be needed
    auto last = first;
    for (double effort : thinned<std::vector<double>>({0, 1e4, 1e5, 3e5}, {0, 1e4, 1e5})) {
      auto const bound = raise_bound(first, cost, what, effort);
      INFO("problem " << i << ", effort " << effort);
      CHECK(bound.cost >= last.cost);
      CHECK(bound.cost <= cost);
      last = bound;
    }
    if (last.cost == first.cost) continue;
    ++raised;
    CHECK(last.rule == bound_rule::windows);
    CHECK(holds(last, what));
    for (int rank : {-1, last.rank + 1, what.ranks()}) {
      auto wrong = last;
      wrong.rank = rank;
      CHECK_FALSE(holds(wrong, what));
    }
  }
  CHECK(raised > thinned(10, 3));
}

TEST_CASE("a bound that needs no raising stays as it is", "[bounds]") {
  stage_costs const costs{.forward = 4, .backward_input = 5, .backward_weight = 3};
  // Rank 1 begins behind two stages of rank 0, or nobody knows when a rank begins.
  for (auto const& where : {placement::custom({0, 0, 1, 1}), placement::custom({0, 1, 1, 2})}) {
    problem const what(where, 3, costs);
    INFO(where.name());
    CHECK_FALSE(is_claimed(1, what));
    CHECK(raise_bound(lower_bound(what), 1000, what) == lower_bound(what));
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
  for (auto const& where : {placement::linear(2), placement::v_shape(2), placement::looped(2, 2)})
    for (bytes limit : {0, 25, 40, 1000}) {
      problem const what(where, 4, costs, 1, {limit});
      for (ticks cost : {most, most / 2, most / 4, most / 4 - 1})
        CHECK_FALSE(is_claimed(cost, what));
      CHECK(is_claimed(1, what));
    }
}

TEST_CASE("windows of the greatest times and sizes do not overflow", "[bounds]") {
  constexpr auto most = std::numeric_limits<std::int64_t>::max() / 2;
  ZBPP_SEEDED(rng, 7);
  for (int round = 0; round < thinned(200, 20); ++round) {
    auto const where = random_placement(rng);
    auto const m = static_cast<int>(rng.integer(1, 6));
    auto const share = most / m / where.stages() / 8;
    auto const cut = [&](std::int64_t whole) { return rng.integer(0, whole); };
    std::vector<stage_costs> stages;
    for (int s = 0; s < where.stages(); ++s) {
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
    problem const what(where, m, stages, cut(share / 16), limits);
    auto const bound = lower_bound(what);
    auto const raised = raise_bound(bound, bound.cost + cut(bound.cost), what);
    INFO("round " << round);
    CHECK(raised.cost >= bound.cost);
    CHECK(holds(raised, what));
  }
}

// Passes one after another, each from its earliest start on, in the order of these.
TEST_CASE("a work tree adds up passes as a rank runs them", "[bounds]") {
  using zbpp::detail::work_tree;
  ZBPP_SEEDED(rng, 3);
  work_tree tree;
  for (int round = 0; round < thinned(200, 50); ++round) {
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
