// SPDX-License-Identifier: Apache-2.0
//
// ZB-V within memory limits: its own order where that fits, else what a search finds.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/search.hpp>
#include <zbpp/policy/policy.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <string_view>

namespace zbpp {

/// Gives the order of `fixed_zb_v` where there is memory for it, which is that of p microbatches on
/// every rank. Where limits are lower it searches for the cheapest order within them.
struct zb_v {
  static constexpr std::string_view name = "zb_v";
  static constexpr std::string_view title = "ZB-V";
  static constexpr std::string_view summary = "no bubble for equal times, memory of 1F1B";

  search_settings search = {};  ///< where its own order does not fit

  /// @throws error (unsupported_problem) when the placement is not a V, or when no schedule fits
  ///         the memory
  [[nodiscard]] schedule operator()(problem const& problem) const {
    auto own = fixed_zb_v{}(problem);
    if (problem.memory_limits().empty() || detail::is_within_limits(own, problem)) return own;
    return greedy_auto{.search = search}(problem);
  }
};

}  // namespace zbpp
