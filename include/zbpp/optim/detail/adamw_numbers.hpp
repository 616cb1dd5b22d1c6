// SPDX-License-Identifier: Apache-2.0
//
// What a step of AdamW computes with, the same for all weights.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/optim/detail/power.hpp>
#include <zbpp/optim/settings.hpp>
#include <zbpp/runtime/optimizer.hpp>

#include <cstdint>

namespace zbpp::optim::detail {

/// Holds the numbers of one step.
struct adamw_numbers {
  float rate;           ///< of the mean, whose bias it makes up for
  float unbias_square;  ///< makes up for the bias of the mean square
  float keep_weight;    ///< what decay leaves of a weight
  float factor;         ///< of gradients; 1 multiplies nothing
  float beta1;
  float beta2;
  float epsilon;
};

/// @param missed  steps of the run that the layer has not taken
/// @return the numbers of a step: the same bits on the host and in a kernel
[[nodiscard]] ZBPP_HOST_DEVICE inline adamw_numbers numbers_of(
    adamw_settings const& settings, step_settings const& step, std::int64_t missed = 0) {
  auto const count = (missed < step.updates ? step.updates - missed : 0) + 1;
  auto const rate = step.learning_rate / (1 - power(settings.beta1, count));
  auto const unbias = 1 / (1 - power(settings.beta2, count));
  auto const decay = rounded_product(step.learning_rate, settings.weight_decay);
  return {
      .rate = static_cast<float>(rate),
      .unbias_square = static_cast<float>(unbias),
      .keep_weight = static_cast<float>(1 - decay),
      .factor = step.factor(),
      .beta1 = settings.beta1,
      .beta2 = settings.beta2,
      .epsilon = settings.epsilon};
}

}  // namespace zbpp::optim::detail
