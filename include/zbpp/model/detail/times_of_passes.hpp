// SPDX-License-Identifier: Apache-2.0
//
// Changes of all times of a stage's passes at once.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>

#include <algorithm>
#include <optional>

namespace zbpp::detail {

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

}  // namespace zbpp::detail
