// SPDX-License-Identifier: Apache-2.0
//
// Stochastic gradient descent with momentum on a GPU, which can take a step back. For nvcc.
#pragma once

#include <zbpp/cuda/detail/layer_optimizer.hpp>
#include <zbpp/cuda/detail/rules.hpp>
#include <zbpp/cuda/launch_rows.cuh>

#include <span>

namespace zbpp::cuda {

/// Steps weights against their gradients, with the bits of `optim::sgd`. Models `optimizer`. Make
/// it while the device of its layers is current. In an `update(ctx)` that is to be replayed,
/// `step(ctx)` steps by what `set_schedule` has put in device memory.
class sgd : public detail::layer_optimizer<detail::sgd_rule, row_launcher> {
 public:
  using layer_optimizer::layer_optimizer;

  /// @return the momentum of all weights, layer after layer, on the device; for checkpoints
  [[nodiscard]] std::span<float> momentum() const noexcept { return moment(0); }
};

}  // namespace zbpp::cuda
