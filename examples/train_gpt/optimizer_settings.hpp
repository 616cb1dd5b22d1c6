// SPDX-License-Identifier: Apache-2.0
//
// How the optimizer steps of a training are taken: by which rule, with which learning rate, and
// what the norm of all gradients decides.
#pragma once

#include <zbpp/runtime/training.hpp>

#include <algorithm>
#include <cstdint>

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
  /// Whether the norm of all gradients decides about each step: they are clipped to `clip`, and a
  /// step is skipped where they are not finite.
  bool needs_norm = false;
  double clip = 0.0;  ///< most that the norm may be; 0 clips nothing

  /// @return the learning rate of a step, counted from 0
  [[nodiscard]] float rate(std::int64_t step) const {
    auto const rise =
        static_cast<float>(step + 1) / static_cast<float>(std::max<std::int64_t>(warm_up, 1));
    auto const fall =
        static_cast<float>(step) / static_cast<float>(std::max<std::int64_t>(steps, 1));
    return learning_rate * std::min(1.0F, rise) * std::max(0.1F, 1.0F - 0.9F * fall);
  }
};

/// Says how the steps of a pipeline are taken.
[[nodiscard]] inline zbpp::training_options options_of(optimizer_settings const& how) {
  return {
      .clip = how.clip, .learning_rate = [how](std::int64_t updates) { return how.rate(updates); }};
}

}  // namespace gpt
