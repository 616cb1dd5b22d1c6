// SPDX-License-Identifier: Apache-2.0
//
// What model/scaled_costs.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/scaled_costs.hpp>

#include <algorithm>
#include <cmath>

namespace zbpp {

namespace detail {

/// Changes the times of a stage of one kind, and what two passes take together. Where roundings
/// leave that by a tick, it stays between the longer one and both in turn.
/// @param change  makes another time of one
template <class Change>
[[nodiscard]] stage_costs with_times(
    stage_costs const& costs, Change const& change, bool are_all = false) {
  auto all = costs;
  for (auto const& field : cost_fields)
    if (field.kind == cost_kind::pass || (are_all && field.kind == cost_kind::optimizer))
      if (auto const time = field.of(costs)) field.set(all, change(*time));
  for (auto const& field : cost_fields) {
    if (field.kind != cost_kind::joint || !(costs.*field.optional)) continue;
    auto const one = all.of(field.one);
    auto const other = all.of(field.other);
    field.set(all, std::clamp(change(*(costs.*field.optional)), std::max(one, other), one + other));
  }
  return all;
}

}  // namespace detail

ZBPP_INLINE stage_costs times_factor(stage_costs const& costs, double factor) noexcept {
  if (factor == 1) return costs;
  return detail::with_times(costs, [factor](ticks time) {
    return static_cast<ticks>(std::llround(static_cast<double>(time) * factor));
  });
}

ZBPP_INLINE stage_costs at_speed(stage_costs const& costs, double speed) {
  if (speed == 1) return costs;
  auto const scaled = [speed](ticks time) {
    constexpr double most = 0x1p62;  // which no problem takes
    return static_cast<ticks>(std::min(std::round(static_cast<double>(time) / speed), most));
  };
  return detail::with_times(costs, scaled, true);
}

}  // namespace zbpp
