// SPDX-License-Identifier: Apache-2.0
//
// Stages divided into equal parts, for placements that have more stages.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Cuts off the first of `parts` equal parts of a stage: that part and the rest, which add up to
/// the stage. What does not divide evenly goes to the first. What is sent between them is as large
/// as what the stage sends, and each needs the stage's workspace. Each keeps an input of its own
/// for R. Tied weights go to the first.
[[nodiscard]] inline std::array<stage_costs, 2> split_stage(stage_costs const& whole, int parts) {
  std::array<stage_costs, 2> halves{whole, whole};
  auto& first = halves[0];  // no structured binding, which clang 14 lets no lambda capture
  auto& second = halves[1];
  auto const rest_of = [parts](std::int64_t all) {
    return all / parts * (parts - 1) + all % parts * (parts - 1) / parts;
  };
  for (auto const& field : cost_fields)
    if (field.merge == cost_merge::sum) {
      second.*field.number = rest_of(whole.*field.number);
      first.*field.number = whole.*field.number - second.*field.number;
    }
  // Each part has to add what W needs beyond its activation, which a rounding can miss by one.
  second.output_gradient =
      std::max(second.output_gradient, second.weight_gradient_input - second.activation);
  first.output_gradient = whole.output_gradient - second.output_gradient;
  // Each part has to stay between the longer of two passes and their sum, which roundings can miss
  // by one.
  auto const halve_joint = [&](auto part, pass_kind one, pass_kind other) {
    if (!(whole.*part)) return;
    auto const least = [&](stage_costs const& c) { return std::max(c.of(one), c.of(other)); };
    auto const most = [&](stage_costs const& c) { return c.of(one) + c.of(other); };
    ticks const both = *(whole.*part);
    ticks const half = std::clamp(
        rest_of(both),
        std::max(least(second), both - most(first)),
        std::min(most(second), both - least(first)));
    second.*part = half;
    first.*part = both - half;
  };
  halve_joint(&stage_costs::backward_fused, pass_kind::backward_input, pass_kind::backward_weight);
  halve_joint(&stage_costs::overlapped, pass_kind::forward, pass_kind::backward_input);
  if (whole.overlapped_fused) {
    // B and W are rounded apart, so a part may be able to hide a tick less.
    auto const fused = pass_kind::backward;
    auto left = whole.saved_by_pairing(fused);
    auto const hide = [&](stage_costs& part, ticks wanted) {
      auto const hidden = std::min({wanted, part.forward, part.of(fused)});
      part.overlapped_fused = part.forward + part.of(fused) - hidden;
      left -= hidden;
    };
    hide(second, rest_of(left));
    hide(first, left);
  }
  if (whole.recompute) {
    second.recompute = rest_of(*whole.recompute);
    first.recompute = *whole.recompute - *second.recompute;
  }
  for (auto& half : halves) half.recompute_input = std::min(whole.recompute_input, half.activation);
  second.tied = 0;
  return halves;
}

/// @return the parts of all stages, each divided into as many
[[nodiscard]] inline std::vector<stage_costs> divided_stages(
    std::span<stage_costs const> stages, int parts) {
  std::vector<stage_costs> all;
  for (auto rest : stages) {
    for (int left = parts; left > 1; --left) {
      auto const cut = split_stage(rest, left);
      all.push_back(cut[0]);
      rest = cut[1];
    }
    all.push_back(rest);
  }
  // Tied weights of the last stage are its output layer; an only stage has both that and the
  // embedding.
  all.back().tied = stages.back().tied;
  if (stages.size() > 1 && parts > 1) all[all.size() - index(parts)].tied = 0;
  return all;
}

}  // namespace zbpp::detail
