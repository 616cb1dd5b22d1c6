// SPDX-License-Identifier: Apache-2.0
//
// The settings of optimizers, on the CPU and on GPUs.
#pragma once

#include <zbpp/optim/layer.hpp>

namespace zbpp::optim {

/// Gives the settings of AdamW.
struct adamw_settings {
  float mean = 0.9F;           ///< share of the mean gradient that a step keeps
  float mean_square = 0.999F;  ///< share of the mean squared gradient that a step keeps
  float epsilon = 1e-8F;       ///< keeps a weight without gradients where it is
  float weight_decay = 0;      ///< share of a weight that goes away per unit of the learning rate
  undo_by undo = undo_by::weights;
};

/// Gives the settings of stochastic gradient descent.
struct sgd_settings {
  float momentum = 0;      ///< share of the last change that a step keeps, from 0 to below 1
  float weight_decay = 0;  ///< times a weight, added to its gradient
  undo_by undo = undo_by::weights;
};

}  // namespace zbpp::optim
