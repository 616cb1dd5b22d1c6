// SPDX-License-Identifier: Apache-2.0
//
// Random tiny problems whose cheapest orders are known, and what a single rule of bounds claims.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>

#include <support/catch.hpp>
#include <support/exhaustive.hpp>
#include <support/seeded.hpp>
#include <support/tiny_problem.hpp>

namespace zbpp::test {

/// Whether a rule claims a cost for some rank.
[[nodiscard]] inline bool is_claimed(bound_rule rule, ticks cost, problem const& problem) {
  cost_bound claim{cost, rule};
  for (; claim.rank < problem.ranks(); ++claim.rank)
    if (holds(claim, problem)) return true;
  return false;
}

/// Checks that a bound holds, and claims as much as its rule can.
inline void check_certificate(cost_bound claim, problem const& problem) {
  CHECK(holds(claim, problem));
  ++claim.cost;
  CHECK_FALSE(holds(claim, problem));
}

/// Which placements problems have. The first stages of all are on a rank each.
enum class tiny_placements {
  any,
  for_first_waits,  ///< those on which the rule of first waits may claim something
};

[[nodiscard]] inline placement random_placement(seeded_random& rng, tiny_placements kinds) {
  auto const last = [&] { return static_cast<int>(rng.integer(0, 2)); };
  switch (rng.integer(kinds == tiny_placements::any ? 0 : 2, 6)) {
    case 0: return placement::linear(static_cast<int>(rng.integer(1, 4)));
    case 1: return placement::looped(2, 3);
    case 2: return placement::looped(2, 2);
    case 3: return placement::looped(3, 2);
    case 4: return placement::v_shape(static_cast<int>(rng.integer(2, 3)));
    case 5: return placement::custom({0, 1, static_cast<int>(rng.integer(0, 1))});
    default: return placement::custom({0, 1, 2, last(), last()});
  }
}

/// Calls `visit(problem, cost of its cheapest order, rng)` for random tiny problems.
/// @return for how many; the others have no order, or too many
template <class Visit>
int for_each_tiny_optimum(int rounds, tiny_placements kinds, Visit visit) {
  ZBPP_SEEDED(rng, 1);
  int problems = 0;
  for (int round = 0; round < rounds; ++round) {
    auto const placement = random_placement(rng, kinds);
    auto const m = static_cast<int>(rng.integer(1, placement.stages() <= 4 ? 5 : 3));
    auto const problem = rng.chance(0.25) ? tiny_problem_with_gradients(rng, placement, m)
                                          : tiny_problem(rng, placement, m);
    auto const best = find_optimum(problem, {.nodes = 20'000});
    if (!best.complete || !best.cost) continue;
    INFO("round " << round << ", " << placement.name() << ", m = " << m);
    ++problems;
    visit(problem, *best.cost, rng);
  }
  return problems;
}

}  // namespace zbpp::test
