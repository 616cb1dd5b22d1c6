// SPDX-License-Identifier: Apache-2.0
//
// ZB-V within memory limits: its own order (policy/zb_v.hpp) where that fits and is cheapest, else
// what a search finds.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/search.hpp>

#include <string_view>

namespace zbpp {

/// Gives the order of `zb_v` where there is memory for it, or that of `v_half` or `v_min` where it
/// costs less. Where limits are lower it searches for the cheapest order within them. The registry
/// has it as `zb_v`.
struct zb_v_within_limits {
  static constexpr std::string_view name = "zb_v";
  static constexpr std::string_view title = "ZB-V";
  static constexpr std::string_view summary =
      "no bubble for equal times, memory of 1F1B; V-Half or V-Min where cheaper";

  search_settings search = {};  ///< where its own order does not fit or may not be the cheapest

  /// @throws error (unsupported_problem) when the placement is not a V, or when no schedule fits
  ///         the memory; (bad_argument) when the budget is not a number of seconds
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/zb_v_within_limits.ipp>
#endif
