// SPDX-License-Identifier: Apache-2.0
//
// What model/scaled_costs.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/scaled_costs.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

namespace zbpp {

namespace detail {

/// Changes the times of the passes of a stage. Where roundings leave what two take together by a
/// tick, it stays between the longer one and both in turn.
/// @param change  makes another time of one
template <class Change>
[[nodiscard]] stage_costs with_times_of_passes(stage_costs const& costs, Change const& change) {
  auto all = costs;
  all.forward = change(costs.forward);
  all.backward_input = change(costs.backward_input);
  all.backward_weight = change(costs.backward_weight);
  if (costs.recompute) all.recompute = change(*costs.recompute);
  auto const together = [&](std::optional<ticks> const& time, ticks one, ticks other) {
    return std::clamp(change(*time), std::max(one, other), one + other);
  };
  if (costs.backward_fused)
    all.backward_fused = together(costs.backward_fused, all.backward_input, all.backward_weight);
  if (costs.overlapped)
    all.overlapped = together(costs.overlapped, all.forward, all.backward_input);
  if (costs.overlapped_fused)
    all.overlapped_fused =
        together(costs.overlapped_fused, all.forward, all.of(pass_kind::backward));
  return all;
}

}  // namespace detail

ZBPP_INLINE stage_costs times_factor(stage_costs const& costs, double factor) noexcept {
  if (factor == 1) return costs;
  return detail::with_times_of_passes(costs, [factor](ticks time) {
    return static_cast<ticks>(std::llround(static_cast<double>(time) * factor));
  });
}

ZBPP_INLINE stage_costs at_speed(stage_costs const& costs, double speed) {
  if (speed == 1) return costs;
  auto const scaled = [speed](ticks time) {
    constexpr double most = 0x1p62;  // which no problem takes
    return static_cast<ticks>(std::min(std::round(static_cast<double>(time) / speed), most));
  };
  auto all = detail::with_times_of_passes(costs, scaled);
  all.norm = scaled(costs.norm);
  all.optimizer_step = scaled(costs.optimizer_step);
  return all;
}

}  // namespace zbpp
