// SPDX-License-Identifier: Apache-2.0
//
// SGD with momentum and Adam over flat arrays. Each element is stepped by itself, so that a model
// cut in chunks takes the same step as the whole one, bit for bit.
#pragma once

#include "memory.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gpt {

/// Names a rule of steps.
enum class optimizer_kind { sgd, adam };

/// @return a learning rate that suits the rule. Own choice: the best of a few for the default
/// model.
[[nodiscard]] constexpr float default_rate(optimizer_kind kind) {
  return kind == optimizer_kind::adam ? 2e-3F : 5e-2F;
}

/// Gives the settings of an optimizer.
struct optimizer_settings {
  optimizer_kind kind = optimizer_kind::adam;
  float learning_rate = default_rate(optimizer_kind::adam);
  std::int64_t steps = 400;   ///< the learning rate falls to a tenth until here
  std::int64_t warm_up = 20;  ///< the learning rate rises until here
  float momentum = 0.9F;      ///< share of the mean gradient that a step keeps
  float mean_square = 0.95F;  ///< share of the mean squared gradient that a step keeps

  /// @return the learning rate of a step, counted from 0
  [[nodiscard]] float rate(std::int64_t step) const {
    auto const rise =
        static_cast<float>(step + 1) / static_cast<float>(std::max<std::int64_t>(warm_up, 1));
    auto const fall =
        static_cast<float>(step) / static_cast<float>(std::max<std::int64_t>(steps, 1));
    return learning_rate * std::min(1.0F, rise) * std::max(0.1F, 1.0F - 0.9F * fall);
  }
};

/// Steps one flat array of parameters.
class optimizer {
 public:
  /// Makes the state for `size` parameters.
  optimizer(optimizer_settings const& settings, std::size_t size)
      : settings_(settings), mean_(size, 0.0F), square_(is_adam() ? size : 0, 0.0F) {}

  /// Takes one step and sets the gradients to 0.
  void update(std::span<float> values, std::span<float> gradients) {
    if (is_adam())
      adam(values.data(), gradients.data());
    else
      sgd(values.data(), gradients.data());
    std::fill(gradients.begin(), gradients.end(), 0.0F);
    ++step_;
  }

  /// @return the mean gradients, one a parameter
  [[nodiscard]] std::span<float> mean() { return mean_; }
  /// @return the mean squared gradients, one a parameter; none where the rule is SGD
  [[nodiscard]] std::span<float> square() { return square_; }
  /// Goes on as if `step` steps had been taken.
  void resume_at(std::int64_t step) { step_ = step; }

 private:
  [[nodiscard]] bool is_adam() const { return settings_.kind == optimizer_kind::adam; }

  /// @source Sutskever et al., ICML 2013 sec. 2
  void sgd(float* x, float const* g);
  /// @source Kingma and Ba, arXiv 1412.6980 sec. 2, algorithm 1
  void adam(float* x, float const* g);

  optimizer_settings settings_;
  floats mean_;
  floats square_;
  std::int64_t step_ = 0;
};

}  // namespace gpt
