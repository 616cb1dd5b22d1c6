// SPDX-License-Identifier: Apache-2.0
//
// The rule of first waits by itself: most often another rule gives a tiny problem as much, so that
// tests/analysis/test_bounds.cpp alone would not meet a claim of it that is too high.
#include <zbpp/analysis/bounds.hpp>

#include <support/catch.hpp>
#include <support/exhaustive.hpp>
#include <support/planner_problems.hpp>
#include <support/thinned.hpp>
#include <support/tiny_optima.hpp>

#include <limits>
#include <vector>

namespace test_bounds_first_waits {

using namespace zbpp;
using zbpp::test::thinned;

namespace {

bool is_claimed(ticks cost, problem const& problem) {
  return zbpp::test::is_claimed(bound_rule::first_waits, cost, problem);
}

}  // namespace

TEST_CASE("no order of a tiny problem costs less than its first waits", "[bounds][long]") {
  int tight = 0;
  auto const problems = zbpp::test::for_each_tiny_optimum(
      thinned(3000, 600),
      zbpp::test::tiny_placements::for_first_waits,
      [&](problem const& problem, ticks best, auto&) {
        CHECK_FALSE(is_claimed(best + 1, problem));
        if (is_claimed(best, problem)) ++tight;
      });
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
  problem const problem(
      placement::looped(2, 2),
      4,
      std::vector{times(12, 2), times(7, 9), times(10, 2), times(13, 9)});
  auto const bound = zbpp::lower_bound(problem);
  CHECK(bound == cost_bound{4 * 48 + 8, bound_rule::first_waits, 1});
  CHECK(holds(bound, problem));
  CHECK(zbpp::test::optimal_cost(problem) == bound.cost);
}

TEST_CASE("first waits claim nothing where they are not for the placement", "[bounds]") {
  stage_costs const costs{.forward = 4, .backward_input = 5, .backward_weight = 3};
  // One stage per rank; three of them; rank 1 begins behind two stages of rank 0.
  for (auto const& placement :
       {placement::linear(2), placement::looped(2, 3), placement::custom({0, 0, 1, 1})}) {
    problem const problem(placement, 3, costs);
    INFO(placement.name());
    CHECK_FALSE(is_claimed(1, problem));
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
    auto const problem = zbpp::test::uneven_problem(random, 'o');
    auto const bound = zbpp::lower_bound(problem);
    INFO("problem " << i);
    zbpp::test::check_certificate(bound, problem);
    if (bound.rule == bound_rule::first_waits) ++best;
  }
  CHECK(best >= 8);
}

}  // namespace test_bounds_first_waits
