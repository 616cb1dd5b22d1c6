// SPDX-License-Identifier: Apache-2.0
//
// Random problems that use all that a problem can say, for the tests of readers and writers.
#pragma once

#include <zbpp/model/problem.hpp>

#include <support/random_timeline.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <vector>

namespace zbpp::test {

/// A number of up to `digits` decimal digits, of any length.
inline std::int64_t random_magnitude(seeded_random& values, int digits) {
  std::int64_t most = 1;
  for (auto left = values.integer(0, digits); left > 0; --left) most *= 10;
  return values.integer(0, most);
}

/// Costs of a stage, valid, each optional part there or not.
inline stage_costs random_costs(seeded_random& values) {
  stage_costs costs;
  costs.forward = random_magnitude(values, 13);
  costs.backward_input = random_magnitude(values, 13);
  costs.backward_weight = random_magnitude(values, 13);
  if (values.chance(0.3))
    costs.backward_fused = values.integer(
        std::max(costs.backward_input, costs.backward_weight),
        costs.backward_input + costs.backward_weight);
  if (values.chance(0.3)) costs.recompute = random_magnitude(values, 13);
  if (values.chance(0.3))
    costs.overlapped = values.integer(
        std::max(costs.forward, costs.backward_input), costs.forward + costs.backward_input);
  if (auto const fused = costs.of(pass_kind::backward); values.chance(0.3))
    costs.overlapped_fused = values.integer(std::max(costs.forward, fused), costs.forward + fused);
  if (values.chance(0.3)) costs.norm = random_magnitude(values, 12);
  if (values.chance(0.3)) costs.optimizer_step = random_magnitude(values, 12);
  costs.activation = random_magnitude(values, 14);
  costs.weight_gradient_input = values.integer(0, costs.activation);
  if (values.chance(0.3)) costs.recompute_input = values.integer(0, costs.activation);
  if (values.chance(0.3)) costs.edge = random_magnitude(values, 9);
  if (values.chance(0.3)) costs.static_memory = random_magnitude(values, 14);
  if (values.chance(0.3)) costs.workspace = random_magnitude(values, 14);
  if (values.chance(0.3)) {
    costs.output_gradient = random_magnitude(values, 14);
    costs.weight_gradient_input += costs.output_gradient;
  }
  return costs;
}

/// Transfers: a number, a table, or a table with rates.
inline transfer_costs random_transfer(seeded_random& values, int ranks) {
  auto const pairs = static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
  if (values.chance(0.3)) return random_magnitude(values, 12);
  std::vector<ticks> latency(pairs);
  for (auto& entry : latency) entry = random_magnitude(values, 12);
  std::vector<double> rate(values.chance(0.5) ? pairs : 0);
  for (auto& entry : rate) entry = values.real() * (values.chance(0.1) ? 1e-300 : 1e3);
  return {ranks, latency, rate};
}

/// A problem of up to 6 ranks with any placement, costs, transfers and limits.
inline problem random_problem(seeded_random& values) {
  auto const ranks = static_cast<int>(values.integer(1, 6));
  auto const layout = values.integer(0, 3);
  auto const placement = layout == 0   ? placement::linear(ranks)
                         : layout == 1 ? placement::looped(ranks, 3)
                         : layout == 2 ? placement::v_shape(ranks)
                                       : random_placement(values);
  std::vector<stage_costs> costs(1, random_costs(values));
  while (costs.size() < static_cast<std::size_t>(placement.stages()))
    costs.push_back(values.chance(0.5) ? costs.front() : random_costs(values));
  std::vector<bytes> limits(
      values.chance(0.3)   ? 0
      : values.chance(0.5) ? 1
                           : static_cast<std::size_t>(placement.ranks()));
  for (auto& limit : limits) limit = random_magnitude(values, 18);
  return {
      placement,
      static_cast<int>(values.integer(1, 30)),
      std::move(costs),
      random_transfer(values, placement.ranks()),
      std::move(limits)};
}

}  // namespace zbpp::test
