// SPDX-License-Identifier: Apache-2.0
//
// The settings of optimizers, on the CPU and on GPUs.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/optim/layer.hpp>

#include <limits>

namespace zbpp::optim {

/// Gives the settings of AdamW.
struct adamw_settings {
  float beta1 = 0.9F;      ///< share of the mean gradient that a step keeps
  float beta2 = 0.999F;    ///< share of the mean squared gradient that a step keeps
  float epsilon = 1e-8F;   ///< keeps a weight without gradients where it is
  float weight_decay = 0;  ///< share of a weight that goes away per unit of the learning rate
  undo_method undo = undo_method::weights;
};

/// Gives the settings of stochastic gradient descent.
struct sgd_settings {
  float momentum = 0;      ///< share of the last change that a step keeps, from 0 to below 1
  float weight_decay = 0;  ///< times a weight, added to its gradient
  undo_method undo = undo_method::weights;
};

namespace detail {

/// Refuses a setting that is not a number within bounds.
/// @throws error (bad_argument)
inline void require_share(float value, char const* text) {
  zbpp::detail::require(value >= 0 && value < 1, text);
}
/// @throws error (bad_argument)
inline void require_size(float value, char const* text) {
  zbpp::detail::require(value >= 0 && value <= std::numeric_limits<float>::max(), text);
}

/// @throws error (bad_argument) that names the setting which is out of bounds
[[nodiscard]] inline adamw_settings checked(adamw_settings const& given) {
  require_share(given.beta1, "adamw_settings::beta1 is a share from 0 to below 1");
  require_share(given.beta2, "adamw_settings::beta2 is a share from 0 to below 1");
  require_size(given.epsilon, "adamw_settings::epsilon is a number from 0");
  require_size(given.weight_decay, "adamw_settings::weight_decay is a number from 0");
  return given;
}
/// @throws as above
[[nodiscard]] inline sgd_settings checked(sgd_settings const& given) {
  require_share(given.momentum, "sgd_settings::momentum is a share from 0 to below 1");
  require_size(given.weight_decay, "sgd_settings::weight_decay is a number from 0");
  return given;
}

}  // namespace detail
}  // namespace zbpp::optim
