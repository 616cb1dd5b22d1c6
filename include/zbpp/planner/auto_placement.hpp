// SPDX-License-Identifier: Apache-2.0
//
// auto_placement: the cheapest schedule over all placements that a model allows, and what each
// placement costs as memory grows.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/search.hpp>

#include <span>
#include <string>
#include <vector>

namespace zbpp {

/// Holds the best schedule that was found for one placement.
struct placed_schedule {
  zbpp::problem problem;  ///< the model on this placement
  zbpp::schedule schedule;
  ticks cost = 0;    ///< exactly what `simulate` says
  cost_bound bound;  ///< no schedule on this placement costs less

  /// @return whether no schedule on this placement costs less
  [[nodiscard]] bool is_optimal() const noexcept { return cost <= bound.cost; }
};

/// Searches for the cheapest schedule of a model over its placements: the one it has, linear, V,
/// and looped with 2, 3, 4 ... chunks. Stages are merged with their neighbours in equal numbers;
/// ranks, transfers and memory limits stay.
struct auto_placement {
  search_settings search = {};  ///< of each placement
  bool halve_stages = true;     ///< where they do not come out even for up to two chunks per rank:
                                ///< times and sizes halve, what is sent does not
  double most_memory_for = 0;   ///< share of the cost that may be spent for memory, as in
                                ///< `greedy_auto`

  /// Finds the best schedule for each placement that fits the memory, the fewest stages first.
  /// @return nothing when no placement fits
  [[nodiscard]] std::vector<placed_schedule> candidates(problem const& problem) const;

  /// @return the cheapest of the candidates, of equal ones the one that takes the least memory, of
  ///         those the one with the fewest stages
  /// @throws error (unsupported_problem) when no placement fits the memory: for the placement that
  ///         needs least, the rank, what it needs and the least limit that works
  [[nodiscard]] placed_schedule operator()(problem const& problem) const;
};

/// Says what one placement costs with one memory limit.
struct sweep_point {
  std::string placement;   ///< `linear`, `v`, `looped 2` with its number of chunks, or `custom`
  bytes memory_limit = 0;  ///< of every rank
  ticks cost = 0;          ///< of the best schedule found
  ticks lower_bound = 0;   ///< no schedule on this placement within this limit costs less
  double bubble_rate = 0;  ///< of the best schedule found
  bool optimal = false;    ///< whether no schedule within this limit costs less

  friend bool operator==(sweep_point const&, sweep_point const&) = default;
};

/// Finds what each placement of a model costs with each of several memory limits, which take the
/// place of the problem's own. With more memory no point of a placement is worse.
/// @return a point for each placement and limit that fits: placement after placement, the fewest
///         stages first, each with its limits ascending
/// @throws error (bad_argument) when a limit is negative
[[nodiscard]] std::vector<sweep_point> sweep_memory(
    problem const& problem, std::span<bytes const> limits, auto_placement const& settings = {});

/// Finds what the problem's own placement costs with each of several memory limits, which take the
/// place of the problem's own. With more memory no point is worse.
/// @return a point for each limit that fits, ascending
/// @throws error (bad_argument) when a limit is negative
[[nodiscard]] std::vector<sweep_point> sweep_memory(
    problem const& problem, std::span<bytes const> limits, greedy_auto const& settings);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/auto_placement.ipp>
#endif
