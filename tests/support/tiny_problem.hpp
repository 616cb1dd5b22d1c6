// SPDX-License-Identifier: Apache-2.0
//
// Random problems that are small enough for their true optimum to be found.
#pragma once

#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/memory_needs.hpp>

#include <support/seeded.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::test {

/// @return a linear placement, a V or two chunks for each rank, in turn
[[nodiscard]] inline placement tiny_placement(seeded_random& random, int trial) {
  return trial % 3 == 0   ? placement::linear(static_cast<int>(random.integer(2, 3)))
         : trial % 3 == 1 ? placement::v_shape(2)
                          : placement::looped(2, 2);
}

/// Makes a problem whose times lie between 0 and 20, with many ties, or with none; with even or
/// uneven stages; with or without transfers; and with limits from the least that works to none.
[[nodiscard]] inline problem tiny_problem(
    seeded_random& random, placement const& placement, int microbatches) {
  auto const most = random.chance(0.3) ? 3 : 20;
  auto const time = [&] { return random.chance(0.05) ? 0 : random.integer(0, most); };
  auto const costs = [&] {
    auto const activation = random.integer(0, 10);
    return stage_costs{
        .forward = time(),
        .backward_input = time(),
        .backward_weight = time(),
        .activation = activation,
        .weight_gradient_input = random.integer(0, activation),
        .static_memory = random.integer(0, 5)};
  };
  std::vector<stage_costs> stages(static_cast<std::size_t>(placement.stages()), costs());
  if (random.chance(0.5))
    for (auto& stage : stages) stage = costs();

  // One microbatch at a time always works: it needs the activations of all chunks of a rank.
  std::vector<bytes> limits;
  auto const times_least = random.chance(0.3) ? 0.0 : random.real(0, placement.ranks() + 1);
  if (random.chance(0.8))
    for (int rank = 0; rank < placement.ranks(); ++rank) {
      bytes activations = 0;
      bytes fixed = 0;
      for (int s : placement.stages_of(rank)) {
        activations += stages[static_cast<std::size_t>(s)].activation;
        fixed += stages[static_cast<std::size_t>(s)].static_memory;
      }
      auto const more = static_cast<bytes>(times_least * static_cast<double>(activations));
      limits.push_back(fixed + activations + random.integer(0, more));
    }

  std::vector<ticks> latency;
  auto const hop = random.chance(0.3) ? 0 : random.integer(0, 5);
  bool const even = random.chance(0.5);
  for (int pair = 0; pair < placement.ranks() * placement.ranks(); ++pair)
    latency.push_back(even ? hop : random.integer(0, 5));
  return {
      placement,
      microbatches,
      std::move(stages),
      transfer_costs(placement.ranks(), std::move(latency)),
      std::move(limits)};
}

/// Makes such a problem in which B adds something for W on some stages, so that W may need more
/// than F keeps, and BW less than B and W.
[[nodiscard]] inline problem tiny_problem_with_gradients(
    seeded_random& random, placement const& placement, int microbatches) {
  auto const plain = tiny_problem(random, placement, microbatches);
  std::vector<stage_costs> stages(plain.all_costs().begin(), plain.all_costs().end());
  bool const all = random.chance(0.3);  // that F keeps, and as much again
  for (auto& c : stages) {
    if (!all && random.chance(0.2)) continue;
    c.output_gradient = all ? c.activation : random.integer(0, 10);
    c.weight_gradient_input =
        all ? 2 * c.activation
            : random.integer(c.output_gradient, c.activation + c.output_gradient);
  }
  std::vector<bytes> limits(plain.memory_limits().begin(), plain.memory_limits().end());
  for (auto& limit : limits) limit += random.chance(0.3) ? 0 : random.integer(0, 12);
  return {placement, microbatches, std::move(stages), plain.transfer(), std::move(limits)};
}

/// Makes a problem with all that an exhaustive search knows: gradients on some stages as above, BW
/// that takes less than B and W, workspace, and R. Limits go from the least that works to what many
/// microbatches take.
[[nodiscard]] inline problem tiny_problem_with_options(
    seeded_random& random, placement const& placement, int microbatches) {
  auto const plain = random.chance(0.5)
                         ? tiny_problem(random, placement, microbatches)
                         : tiny_problem_with_gradients(random, placement, microbatches);
  std::vector<stage_costs> stages(plain.all_costs().begin(), plain.all_costs().end());
  bool const fuses = random.chance(0.5);
  bool const recomputes = random.chance(0.6);
  for (auto& c : stages) {
    if (random.chance(0.6)) c.workspace = random.integer(0, 10);
    if (fuses && random.chance(0.8))
      c.backward_fused = random.integer(
          std::max(c.backward_input, c.backward_weight), c.backward_input + c.backward_weight);
    if (recomputes && random.chance(0.7)) {
      c.recompute = random.integer(0, c.forward);
      c.recompute_input = random.integer(0, c.activation);
    }
  }
  problem const unlimited(placement, microbatches, stages, plain.transfer());
  std::vector<bytes> limits;
  auto const more = random.chance(0.3) ? 0 : random.integer(0, 30);
  if (random.chance(0.9))
    for (auto const least : least_memory(unlimited))
      limits.push_back(least + random.integer(0, more));
  return with_memory_limits(unlimited, std::move(limits));
}

}  // namespace zbpp::test
