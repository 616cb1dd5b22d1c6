// SPDX-License-Identifier: Apache-2.0
//
// What optimizers step: the weights and gradients of a layer, and how they come back from a step
// that does not hold.
#pragma once

#include <cstdint>
#include <span>

namespace zbpp::optim {

/// Refers to the weights of one layer and their gradients, of the same size, in the memory of the
/// host or of a GPU. A weight that several layers of a stage share stands in one of them.
struct layer {
  std::span<float> weights;
  std::span<float> gradients;
};

/// Says how an optimizer can take a step back.
enum class undo_by : std::uint8_t {
  /// The old weights are kept, 4 bytes for each; moments are changed when the step is final, from
  /// the gradients, which stay until then.
  weights,
  /// Weights and moments are kept: 8 bytes for each weight with momentum, 12 with Adam.
  copies,
};

}  // namespace zbpp::optim
