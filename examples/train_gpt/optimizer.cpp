// SPDX-License-Identifier: Apache-2.0
#include "optimizer.hpp"

#include <cmath>

namespace gpt {

void optimizer::sgd(float* x, float const* g) {
  auto const rate = settings_.rate(step_);
  for (std::size_t i = 0; i < mean_.size(); ++i) {
    mean_[i] = settings_.momentum * mean_[i] + g[i];
    x[i] -= rate * mean_[i];
  }
}

void optimizer::adam(float* x, float const* g) {
  constexpr float epsilon = 1e-8F;
  auto const keep = settings_.momentum;
  auto const keep_square = settings_.mean_square;
  auto const steps = static_cast<float>(step_ + 1);
  auto const rate = settings_.rate(step_) / (1.0F - std::pow(keep, steps));
  auto const unbias = 1.0F / (1.0F - std::pow(keep_square, steps));
  auto* const mean = mean_.data();
  auto* const square = square_.data();
  for (std::size_t i = 0; i < mean_.size(); ++i) {
    mean[i] = keep * mean[i] + (1.0F - keep) * g[i];
    square[i] = keep_square * square[i] + (1.0F - keep_square) * g[i] * g[i];
    x[i] -= rate * mean[i] / (std::sqrt(square[i] * unbias) + epsilon);
  }
}

}  // namespace gpt
