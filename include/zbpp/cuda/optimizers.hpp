// SPDX-License-Identifier: Apache-2.0
//
// AdamW and SGD on a GPU, whoever launches their kernels: adamw.cuh and sgd.cuh do it by nvcc.
#pragma once

#include <zbpp/cuda/detail/layer_optimizer.hpp>
#include <zbpp/cuda/detail/layer_rows.hpp>

#include <span>

namespace zbpp::cuda {

/// Steps weights by Adam with decoupled weight decay, with the bits of `optim::adamw`. Make
/// it while the device of its layers is current. In an `update(ctx)` that is to
/// be replayed, `step(ctx)` steps by the rates that `set_schedule` has put in device memory.
/// @tparam Launcher  `Launcher::run(stream, rows, layers)` launches a row function, which may
///                   change the weights and gradients of these layers
template <class Launcher>
class basic_adamw : public detail::layer_optimizer<detail::adamw_rule, Launcher> {
 public:
  using detail::layer_optimizer<detail::adamw_rule, Launcher>::layer_optimizer;

  /// @return the mean gradients of all weights, layer after layer, on the device; for checkpoints
  [[nodiscard]] std::span<float> mean() const noexcept { return this->moment(0); }
  /// @return the mean squared gradients of all weights, on the device; as `mean`
  [[nodiscard]] std::span<float> mean_square() const noexcept { return this->moment(1); }
  /// @return as `optim::adamw::missed_steps`, on the device; steps that were captured go by it, too
  [[nodiscard]] std::span<std::int64_t> missed_steps() const noexcept { return this->missed(); }
};
/// Steps weights against their gradients, with momentum and the bits of `optim::sgd`. The rest is
/// as for `basic_adamw`.
template <class Launcher>
class basic_sgd : public detail::layer_optimizer<detail::sgd_rule, Launcher> {
 public:
  using detail::layer_optimizer<detail::sgd_rule, Launcher>::layer_optimizer;

  /// @return the momentum of all weights, layer after layer, on the device; for checkpoints
  [[nodiscard]] std::span<float> momentum() const noexcept { return this->moment(0); }
};

}  // namespace zbpp::cuda
