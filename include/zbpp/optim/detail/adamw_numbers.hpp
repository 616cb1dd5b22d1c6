// SPDX-License-Identifier: Apache-2.0
//
// What a step of AdamW computes with, the same for all weights.
#pragma once

#include <zbpp/optim/settings.hpp>
#include <zbpp/runtime/optimizer.hpp>

#include <cmath>

namespace zbpp::optim::detail {

/// Holds the numbers of one step.
struct adamw_numbers {
  float rate;           ///< of the mean, whose bias it makes up for
  float unbias_square;  ///< makes up for the bias of the mean square
  float keep_weight;    ///< what decay leaves of a weight
  float factor;         ///< of gradients; 1 multiplies nothing
  float mean;
  float mean_square;
  float epsilon;
};

/// @return the numbers of a step
[[nodiscard]] inline adamw_numbers numbers_of(
    adamw_settings const& settings, step_settings const& how) {
  auto const count = static_cast<double>(how.updates + 1);
  auto const rate = how.learning_rate / (1 - std::pow(static_cast<double>(settings.mean), count));
  auto const unbias = 1 / (1 - std::pow(static_cast<double>(settings.mean_square), count));
  return {
      .rate = static_cast<float>(rate),
      .unbias_square = static_cast<float>(unbias),
      .keep_weight =
          static_cast<float>(1 - how.learning_rate * static_cast<double>(settings.weight_decay)),
      .factor = how.factor(),
      .mean = settings.mean,
      .mean_square = settings.mean_square,
      .epsilon = settings.epsilon};
}

}  // namespace zbpp::optim::detail
