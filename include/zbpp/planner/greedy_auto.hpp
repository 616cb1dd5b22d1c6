// SPDX-License-Identifier: Apache-2.0
//
// greedy_auto searches for a cheap order, given each stage's times, each transfer's time and each
// rank's memory. It also returns a lower bound; where cost and bound are equal, the order is proved
// optimal among those that run the microbatches of each stage in order.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/search.hpp>

#include <cstdint>
#include <string_view>

namespace zbpp {

/// Holds what a search found.
struct found_schedule {
  zbpp::schedule schedule;
  ticks cost = 0;          ///< exactly what `simulate` says
  cost_bound bound;        ///< no schedule that runs microbatches in order costs less
  std::int64_t tries = 0;  ///< schedules that were built and compared

  /// @return whether no schedule that runs the microbatches of each stage in order costs less
  [[nodiscard]] bool is_optimal() const noexcept { return cost <= bound.cost; }
};

/// Searches for the cheapest schedule on the problem's placement, of any shape, within every rank's
/// memory limit. It is never worse than the handcrafted policies that fit. BW and R are used where
/// the costs of a stage offer them and they pay.
struct greedy_auto {
  static constexpr std::string_view name = "greedy_auto";
  static constexpr std::string_view title = "greedy-auto";
  static constexpr std::string_view summary = "searched for this problem, with a lower bound";

  search_settings search = {};

  /// @throws error (unsupported_problem) naming the rank, what it needs at least and the least
  ///         limit that works, when no schedule fits the memory; (bad_argument) when the budget is
  ///         not a number of seconds
  [[nodiscard]] found_schedule find(problem const& problem) const;

  /// @throws error (unsupported_problem) as `find`
  [[nodiscard]] schedule operator()(problem const& problem) const { return find(problem).schedule; }
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/greedy_auto.ipp>
#endif
