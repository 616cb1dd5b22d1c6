// SPDX-License-Identifier: Apache-2.0
//
// The rule of first waits by itself: most often another rule gives a tiny problem as much, so that
// tests/test_bounds.cpp alone would not meet a claim of it that is too high.
#include <zbpp/analysis/bounds.hpp>

#include <support/catch.hpp>
#include <support/exhaustive.hpp>
#include <support/planner_problems.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/tiny_problem.hpp>

#include <limits>
#include <vector>

namespace test_bounds_first_waits {

using zbpp::bound_rule;
using zbpp::cost_bound;
using zbpp::holds;
using zbpp::placement;
using zbpp::problem;
using zbpp::stage_costs;
using zbpp::ticks;
using zbpp::test::seeded_random;
using zbpp::test::thinned;

namespace {

bool is_claimed(ticks cost, problem const& problem) {
  cost_bound claim{cost, bound_rule::first_waits};
  for (; claim.rank < problem.ranks(); ++claim.rank)
    if (holds(claim, problem)) return true;
  return false;
}

// Looped, V, and others whose first stages are on a rank each, some of them with three stages.
placement random_placement(seeded_random& rng) {
  auto const last = [&] { return static_cast<int>(rng.integer(0, 2)); };
  switch (rng.integer(0, 4)) {
    case 0: return placement::looped(2, 2);
    case 1: return placement::looped(3, 2);
    case 2: return placement::v_shape(static_cast<int>(rng.integer(2, 3)));
    case 3: return placement::custom({0, 1, static_cast<int>(rng.integer(0, 1))});
    default: return placement::custom({0, 1, 2, last(), last()});
  }
}

}  // namespace

TEST_CASE("no order of a tiny problem costs less than its first waits", "[bounds]") {
  ZBPP_SEEDED(rng, 1);
  int problems = 0;
  int tight = 0;
  for (int round = 0; round < thinned(3000, 600); ++round) {
    auto const where = random_placement(rng);
    auto const m = static_cast<int>(rng.integer(1, where.stages() <= 4 ? 5 : 3));
    auto const what = rng.chance(0.25) ? zbpp::test::tiny_problem_with_gradients(rng, where, m)
                                       : zbpp::test::tiny_problem(rng, where, m);
    auto const best = zbpp::test::find_optimum(what, {.nodes = 20'000});
    if (!best.complete || !best.cost) continue;
    INFO("round " << round << ", " << where.name() << ", m = " << m);
    ++problems;
    CHECK_FALSE(is_claimed(*best.cost + 1, what));
    if (is_claimed(*best.cost, what)) ++tight;
  }
  CHECK(problems > thinned(2000, 400));
  CHECK(tight > problems / 8);
}

// Rank 1 begins at 12, and F of stage 3 can start 17 after that, when rank 0 runs its first F of
// stage 2 as soon as it can, at 19. Then the second F of stage 1 is late, and rank 1 idles 10. It
// idles 8 when rank 0 runs two F first: F of stage 3 starts after 22, with two F of stage 1 before.
TEST_CASE("an F of the second stage delays those of the first on the way", "[bounds]") {
  auto const times = [](ticks f, ticks w) {
    return stage_costs{.forward = f, .backward_input = 5, .backward_weight = w};
  };
  problem const what(
      placement::looped(2, 2),
      4,
      std::vector{times(12, 2), times(7, 9), times(10, 2), times(13, 9)});
  auto const bound = zbpp::lower_bound(what);
  CHECK(bound == cost_bound{4 * 48 + 8, bound_rule::first_waits, 1});
  CHECK(holds(bound, what));
  CHECK(zbpp::test::optimal_cost(what) == bound.cost);
}

TEST_CASE("first waits claim nothing where they are not for the placement", "[bounds]") {
  stage_costs const costs{.forward = 4, .backward_input = 5, .backward_weight = 3};
  // One stage per rank; three of them; rank 1 begins behind two stages of rank 0.
  for (auto const& where :
       {placement::linear(2), placement::looped(2, 3), placement::custom({0, 0, 1, 1})}) {
    problem const what(where, 3, costs);
    INFO(where.name());
    CHECK_FALSE(is_claimed(1, what));
  }
  problem const looped(placement::looped(2, 2), 3, costs);
  CHECK(is_claimed(1, looped));
  CHECK_FALSE(is_claimed(std::numeric_limits<ticks>::max(), looped));
}

// What the rule adds to the others on pipelines like those of docs/benchmarks.md.
TEST_CASE("first waits are the best bound of many looped pipelines", "[bounds]") {
  zbpp::test::plain_random random(20);
  int best = 0;
  for (int i = 0; i < 20; ++i) {
    auto const what = zbpp::test::uneven_problem(random, 'o');
    auto const bound = zbpp::lower_bound(what);
    INFO("problem " << i);
    CHECK(holds(bound, what));
    auto more = bound;
    ++more.cost;
    CHECK_FALSE(holds(more, what));
    if (bound.rule == bound_rule::first_waits) ++best;
  }
  CHECK(best >= 8);
}

}  // namespace test_bounds_first_waits
