// SPDX-License-Identifier: Apache-2.0
//
// What model/layers.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>

#include <algorithm>
#include <span>

namespace zbpp {

ZBPP_INLINE stage_costs merge_layers(std::span<layer_costs const> layers) {
  using detail::cost_merge;
  stage_costs sum;
  for (auto const& field : detail::cost_fields) {
    if (field.merge == cost_merge::own) continue;
    auto& all = sum.*field.number;
    for (auto const& layer : layers) {
      auto const one = layer.*field.number;
      all = field.merge == cost_merge::sum        ? all + one
            : field.merge == cost_merge::greatest ? std::max(all, one)
                                                  : one;
    }
  }
  ticks fused = 0;
  ticks saved = 0;        // by an F beside a B
  ticks saved_fused = 0;  // by an F beside a BW
  bool is_made_again = false;
  for (auto const& layer : layers) {
    fused += layer.of(pass_kind::backward);
    saved += layer.saved_by_pairing(pass_kind::backward_input);
    saved_fused += layer.saved_by_pairing(pass_kind::backward);
    if (!layer.recompute) sum.recompute_input += layer.activation;
    if (layer.recompute && !is_made_again) sum.recompute_input += layer.recompute_input;
    if (layer.recompute) sum.recompute = sum.recompute.value_or(0) + *layer.recompute;
    is_made_again = layer.recompute.has_value();
  }
  if (fused != sum.backward_input + sum.backward_weight) sum.backward_fused = fused;
  if (saved != 0) sum.overlapped = sum.forward + sum.backward_input - saved;
  if (saved_fused != saved) sum.overlapped_fused = sum.forward + fused - saved_fused;
  if (!sum.recompute) sum.recompute_input = 0;
  return sum;
}

}  // namespace zbpp
