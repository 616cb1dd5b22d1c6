// SPDX-License-Identifier: Apache-2.0
//
// Problems whose stages cost anything.
#pragma once

#include <zbpp/model/problem.hpp>

#include <support/seeded.hpp>

#include <algorithm>
#include <vector>

namespace zbpp::test {

/// Costs of any size.
[[nodiscard]] inline stage_costs some_costs(seeded_random& random) {
  stage_costs c;
  c.forward = random.integer(1, 150);
  c.backward_input = random.integer(1, 150);
  c.backward_weight = random.integer(0, 150);
  if (random.chance(0.5))
    c.backward_fused = random.integer(
        std::max(c.backward_input, c.backward_weight), c.backward_input + c.backward_weight);
  c.activation = random.integer(0, 150);
  c.weight_gradient_input = random.integer(0, c.activation);
  if (random.chance(0.3)) {
    c.recompute = random.integer(0, 99);
    c.recompute_input = random.integer(0, c.activation / 2);
  }
  c.edge = random.integer(0, 20);
  c.static_memory = random.integer(0, 300);
  return c;
}

/// @param splits_only  no BW and no R
[[nodiscard]] inline problem some_problem(
    seeded_random& random, placement const& placement, int microbatches, bool splits_only = false) {
  std::vector<stage_costs> stages;
  for (int s = 0; s < placement.stages(); ++s) {
    stages.push_back(some_costs(random));
    if (!splits_only) continue;
    stages.back().backward_fused.reset();
    stages.back().recompute.reset();
    stages.back().recompute_input = 0;
  }
  return {placement, microbatches, stages, random.integer(0, 20)};
}

}  // namespace zbpp::test
