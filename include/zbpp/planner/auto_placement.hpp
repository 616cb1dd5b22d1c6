// SPDX-License-Identifier: Apache-2.0
//
// auto_placement: the cheapest schedule over all placements that a model allows, and what each
// placement costs as memory grows.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/search.hpp>

#include <span>
#include <vector>

namespace zbpp {

/// Searches for the cheapest schedule of a model over its placements: the one it has, linear, V,
/// and looped with 2, 3, 4 ... chunks. Stages are merged with their neighbours in equal numbers;
/// ranks, transfers and memory limits stay.
struct auto_placement {
  search_settings search = {.seconds = 10};  ///< over all placements
  bool halve_stages = true;    ///< where they do not come out even for up to two chunks per rank:
                               ///< times and sizes halve, what is sent does not
  double most_memory_for = 0;  ///< share of the cost to spend for memory, as in `greedy_auto`

  /// Finds the best schedule for each placement that fits the memory, the fewest stages first.
  /// @return the plans, none when no placement fits; lower bounds are about schedules on each
  [[nodiscard]] std::vector<found_plan> candidates(problem const& problem) const;

  /// @return the cheapest candidate; of equal ones that of least memory, then of fewest stages
  /// @throws error (unsupported_problem) when no placement fits the memory: for the placement that
  ///         needs least, the rank, what it needs and the least limit that works
  [[nodiscard]] found_plan operator()(problem const& problem) const;
};

/// Finds what each placement of a model costs with each of several memory limits, which take the
/// place of the problem's own: plans of `candidates`, on each placement none worse with more
/// memory. Each limit has the whole budget, over all placements.
/// @return a plan for each placement and limit that fits: placement after placement, the fewest
///         stages first, each with its limits ascending, which are those of `found_plan::problem`.
///         The lower bound is about schedules on that placement within that limit
/// @throws error (bad_argument) when a limit is negative
[[nodiscard]] std::vector<found_plan> sweep_memory(
    problem const& problem, std::span<bytes const> limits, auto_placement const& settings = {});

/// Finds what the problem's own placement costs with each of several memory limits, which take the
/// place of the problem's own: plans of `settings`, no worse with more memory, a search each.
/// @return a plan for each limit that fits, ascending
/// @throws error (bad_argument) when a limit is negative
[[nodiscard]] std::vector<found_plan> sweep_memory(
    problem const& problem, std::span<bytes const> limits, greedy_auto const& settings);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/auto_placement.ipp>
#endif
