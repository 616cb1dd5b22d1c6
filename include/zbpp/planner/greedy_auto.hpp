// SPDX-License-Identifier: Apache-2.0
//
// greedy_auto searches for a cheap order, given each stage's times, each transfer's time and each
// rank's memory. `find_plan` also returns its lower bound; where cost and bound are equal, the
// order is proved optimal among those that run the microbatches of each stage in order.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/search.hpp>

#include <string_view>

namespace zbpp {

/// Searches for the cheapest schedule on the problem's placement, of any shape, within every rank's
/// memory limit. It is never worse than the handcrafted policies that fit, nor, where edges take no
/// memory and no passes are paired, than a policy of the registry with the same budget. BW and R
/// are used where the costs of a stage offer them and they pay.
///
/// Without a proof it searches once more, for a share of the budget, in each smaller memory that a
/// policy keeps on its placement (V-Half, V-Min, ZB-I) and that could hold a cheaper order.
struct greedy_auto {
  static constexpr std::string_view name = "greedy_auto";
  static constexpr std::string_view title = "greedy-auto";
  static constexpr std::string_view summary = "searched for this problem, with a lower bound";

  search_settings search = {};
  /// Share of the least cost found that a plan may cost more where it takes less memory for that,
  /// from 0 to 1; 0.005 gives up to half a percent of the time.
  double most_memory_for = 0;

  /// @throws error (unsupported_problem) naming the rank, what it needs at least and the least
  ///         limit that works, when no schedule fits the memory; (bad_argument) when the budget is
  ///         not a number of seconds
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

namespace detail {

/// Finds what `greedy_auto` does.
/// @throws error as `greedy_auto`
/// @return the plan; its lower bound is about all schedules of the problem
[[nodiscard]] found_plan find_order(
    problem const& problem, search_settings const& search, double most_memory_for);

}  // namespace detail

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/greedy_auto.ipp>
#endif
