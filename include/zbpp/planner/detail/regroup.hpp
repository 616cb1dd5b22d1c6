// SPDX-License-Identifier: Apache-2.0
//
// The same model on other placements: neighbouring stages are merged, and divided where there are
// too few of them.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
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
  auto const halve = [&](auto part) {
    second.*part = rest_of(whole.*part);
    first.*part = whole.*part - second.*part;
  };
  halve(&stage_costs::forward);
  halve(&stage_costs::backward_input);
  halve(&stage_costs::backward_weight);
  halve(&stage_costs::norm);
  halve(&stage_costs::optimizer_step);
  halve(&stage_costs::activation);
  halve(&stage_costs::weight_gradient_input);
  halve(&stage_costs::static_memory);
  // Each part has to add what W needs beyond its activation, which a rounding can miss by one.
  second.output_gradient =
      std::max(rest_of(whole.output_gradient), second.weight_gradient_input - second.activation);
  first.output_gradient = whole.output_gradient - second.output_gradient;
  // Each part has to stay between the longer of two passes and their sum, which roundings can miss
  // by one.
  auto const halve_joint = [&](auto part, auto one, auto other) {
    if (!(whole.*part)) return;
    auto const least = [&](stage_costs const& c) { return std::max(c.*one, c.*other); };
    auto const most = [&](stage_costs const& c) { return c.*one + c.*other; };
    ticks const both = *(whole.*part);
    ticks const half = std::clamp(
        rest_of(both),
        std::max(least(second), both - most(first)),
        std::min(most(second), both - least(first)));
    second.*part = half;
    first.*part = both - half;
  };
  halve_joint(
      &stage_costs::backward_fused, &stage_costs::backward_input, &stage_costs::backward_weight);
  halve_joint(&stage_costs::overlapped, &stage_costs::forward, &stage_costs::backward_input);
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

/// Puts a model on another placement with as many ranks, each stage a run of equally many
/// neighbouring stages.
/// @param most_parts  into how many parts each stage may be divided where they do not come out even
/// @return nothing where they do not come out even all the same
[[nodiscard]] inline std::optional<problem> regroup(
    problem const& problem, placement const& placement, int most_parts) {
  if (placement == problem.placement()) return problem;
  auto const wanted = index(placement.stages());
  auto const parts = placement.stages() / std::gcd(placement.stages(), problem.stages());
  if (parts > most_parts) return std::nullopt;
  auto const grains = divided_stages(problem.all_costs(), parts);
  auto const run = grains.size() / wanted;
  std::vector<stage_costs> stages;
  for (std::size_t s = 0; s < wanted; ++s)
    stages.push_back(merge_layers(std::span<stage_costs const>(grains).subspan(s * run, run)));
  return zbpp::problem(
      placement,
      problem.microbatches(),
      std::move(stages),
      problem.transfer(),
      {problem.memory_limits().begin(), problem.memory_limits().end()});
}

/// Lists the placements that a model could have, the fewest stages first: its own, linear, V, and
/// looped with any number of chunks. Stages are halved for at most two chunks per rank.
[[nodiscard]] inline std::vector<problem> regroupings(problem const& problem, bool may_halve) {
  auto const p = problem.ranks();
  std::vector<zbpp::problem> found{problem};
  auto const add = [&](placement const& placement, int most_parts) {
    auto other = regroup(problem, placement, most_parts);
    auto const is_there = [&](zbpp::problem const& known) {
      return known.placement() == placement;
    };
    if (other && std::none_of(found.begin(), found.end(), is_there))
      found.push_back(std::move(*other));
  };
  int const few = may_halve ? 2 : 1;
  add(placement::linear(p), few);
  add(placement::v_shape(p), few);
  add(placement::looped(p, 2), few);
  for (int chunks = 3; chunks * p <= problem.stages(); ++chunks)
    add(placement::looped(p, chunks), 1);
  std::stable_sort(found.begin(), found.end(), [](zbpp::problem const& a, zbpp::problem const& b) {
    return a.stages() < b.stages();
  });
  return found;
}

/// @return the name of a placement, with the number of chunks where that is not in the name
[[nodiscard]] inline std::string sweep_name(placement const& placement) {
  auto const name = placement.name();
  return name == "looped" ? name + " " + std::to_string(placement.stages() / placement.ranks())
                          : name;
}

}  // namespace zbpp::detail
