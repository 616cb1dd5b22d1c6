// SPDX-License-Identifier: Apache-2.0
//
// auto_plan: the cheapest plan of a model of layers over all that can be chosen at once: placement,
// layers of each stage, stages that recompute, and the order of passes.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/planner/search.hpp>

#include <span>
#include <string_view>
#include <vector>

namespace zbpp {

/// Searches for the cheapest plan of a model of layers within every rank's memory limit: over the
/// placement that the model has, linear, V, and looped with 2, 3, 4 ... chunks, wherever there are
/// layers enough; over the layers of each stage; over the stages that recompute; and over orders.
/// The answer is never worse with a larger budget.
struct auto_plan {
  static constexpr std::string_view title = "auto-plan";

  search_settings search = {.seconds = 10};  ///< over all placements
  int most_chunks = 8;                       ///< per rank, of looped placements; at least 2
  double most_memory_for = 0;  ///< share of the cost to spend for memory, as in `greedy_auto`

  /// @return the cheapest plan found, of the best on each placement that cost the same the one that
  ///         takes the least memory, of those the one with the fewest stages. Its lower bound is
  ///         about all placements that were looked at, however they are cut
  /// @throws error (unsupported_problem) when nothing that was tried fits the memory: for the
  ///         closest, its placement, the rank, what it needs, and how much higher the limits have
  ///         to be; (bad_argument) when a setting is out of range
  [[nodiscard]] found_plan operator()(layered_problem const& model) const;

  /// Finds the cheapest plan for each of several memory limits, which take the place of the
  /// model's own; each gets the whole budget. With more memory no plan costs more.
  /// @return one for each limit that fits, ascending; the limit is that of `found_plan::problem`
  /// @throws error (bad_argument) when a limit is negative or a setting is out of range
  [[nodiscard]] std::vector<found_plan> frontier(
      layered_problem const& model, std::span<bytes const> limits) const;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/auto_plan.ipp>
#endif
