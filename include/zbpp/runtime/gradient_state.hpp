// SPDX-License-Identifier: Apache-2.0
//
// What ranks tell one another of their gradients before an optimizer step, and what follows from
// it: whether gradients are clipped, and whether the step is skipped.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

namespace zbpp {

/// Describes the gradients of one layer. The sum is a double, in an order that is the same wherever
/// the layer runs, so that the norm of a model has the same bits however its layers are spread.
struct gradient_state {
  double sum_of_squares = 0;  ///< of the gradients as they are, the loss scale included
  bool is_finite = true;      ///< false when one of them is infinite or not a number

  friend bool operator==(gradient_state const&, gradient_state const&) = default;
};

/// Says what the gradients of all layers mean for the step.
struct gradient_verdict {
  double norm = 0;         ///< of all gradients, loss scale taken out; not finite where one is not
  double coefficient = 1;  ///< by which clipping multiplies them; 1 multiplies nothing
  bool is_finite = true;   ///< false: the step is skipped

  /// @return whether the step is taken with the gradients as they are
  [[nodiscard]] bool is_plain() const noexcept { return is_finite && coefficient >= 1; }

  friend bool operator==(gradient_verdict const&, gradient_verdict const&) = default;
};

/// Adds up the states of layers in their order and decides.
/// @param clip   most that the norm may be; 0 clips nothing
/// @param scale  by which all gradients are too large: the loss scale
/// @source Pascanu et al., arXiv 1211.5063 sec. 3.2; the 1e-6 is that of PyTorch's clip_grad_norm_
[[nodiscard]] inline gradient_verdict judge(
    std::span<gradient_state const> layers, double clip, double scale) noexcept {
  gradient_verdict verdict;
  double sum = 0;
  for (auto const& layer : layers) {
    sum += layer.sum_of_squares;
    verdict.is_finite = verdict.is_finite && layer.is_finite;
  }
  verdict.norm = std::sqrt(sum) / scale;
  verdict.is_finite = verdict.is_finite && std::isfinite(verdict.norm);
  if (verdict.is_finite && clip > 0)
    verdict.coefficient = std::min(1.0, clip / (verdict.norm + 1e-6));
  return verdict;
}

}  // namespace zbpp
