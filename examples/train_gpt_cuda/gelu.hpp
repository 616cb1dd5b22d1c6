// SPDX-License-Identifier: Apache-2.0
//
// GELU as cuBLASLt has it, on the host: what the products of the model of CUDA apply.
#pragma once

#include <cmath>

namespace gpt::cuda {

/// Gives e^x / (1 + e^x).
[[nodiscard]] inline float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

/// Is GELU in its tanh form, as x * sigmoid(slope * (x + cubic * x^3)).
/// @source Hendrycks and Gimpel, arXiv 1606.08415 sec. 2; slope is 2 * sqrt(2 / pi)
struct gelu {
  static constexpr float slope = 1.5957691216F;
  static constexpr float cubic = 0.044715F;

  /// @return its value
  [[nodiscard]] static float of(float x) { return x * sigmoid(slope * (x + cubic * x * x * x)); }
  /// @return its derivative
  [[nodiscard]] static float derivative(float x) {
    float const open = sigmoid(slope * (x + cubic * x * x * x));
    float const inner = slope * (1.0F + 3.0F * cubic * x * x);
    return open + x * open * (1.0F - open) * inner;
  }
};

}  // namespace gpt::cuda
