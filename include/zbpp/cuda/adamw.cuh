// SPDX-License-Identifier: Apache-2.0
//
// AdamW on a GPU, which can take a step back. For nvcc.
#pragma once

#include <zbpp/cuda/detail/layer_optimizer.hpp>
#include <zbpp/cuda/detail/rules.hpp>
#include <zbpp/cuda/launch_rows.cuh>

#include <span>

namespace zbpp::cuda {

/// Steps weights by Adam with decoupled weight decay, with the bits of `optim::adamw`. Models
/// `optimizer`. Make it while the device of its layers is current. In an `update(ctx)` that is to
/// be replayed, `step(ctx)` steps by what `set_schedule` has put in device memory.
class adamw : public detail::layer_optimizer<detail::adamw_rule, row_launcher> {
 public:
  using layer_optimizer::layer_optimizer;

  /// @return the mean gradients of all weights, layer after layer, on the device; for checkpoints
  [[nodiscard]] std::span<float> mean() const noexcept { return moment(0); }
  /// @return the mean squared gradients of all weights, layer after layer, on the device; for
  ///         checkpoints
  [[nodiscard]] std::span<float> mean_square() const noexcept { return moment(1); }
};

}  // namespace zbpp::cuda
