// SPDX-License-Identifier: Apache-2.0
//
// Problems like others, but for one thing.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>

#include <support/seeded.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace zbpp::test {

/// @return the same problem with other limits
[[nodiscard]] inline problem with_limits(problem const& problem, std::vector<bytes> limits) {
  return {
      problem.placement(),
      problem.microbatches(),
      {problem.all_costs().begin(), problem.all_costs().end()},
      problem.transfer(),
      std::move(limits)};
}

/// @return the same problem, but B adds something for W
[[nodiscard]] inline problem with_gradients(seeded_random& random, problem const& problem) {
  std::vector<stage_costs> stages(problem.all_costs().begin(), problem.all_costs().end());
  for (auto& c : stages) {
    c.output_gradient = random.integer(0, 150);
    c.weight_gradient_input += c.output_gradient;
  }
  return {problem.placement(), problem.microbatches(), stages, problem.transfer()};
}

/// @return the same problem with an `overlapped` of any size on most of its stages, and an
///         `overlapped_fused` on some.
[[nodiscard]] inline problem with_overlapped(problem const& problem, seeded_random& random) {
  std::vector<stage_costs> costs(problem.all_costs().begin(), problem.all_costs().end());
  for (auto& c : costs)
    if (random.chance(0.9))
      c.overlapped =
          random.integer(std::max(c.forward, c.backward_input), c.forward + c.backward_input);
  for (auto& c : costs)
    if (auto const fused = c.of(pass_kind::backward); random.chance(0.4))
      c.overlapped_fused = random.integer(std::max(c.forward, fused), c.forward + fused);
  return with_stages(problem, std::move(costs));
}

}  // namespace zbpp::test
