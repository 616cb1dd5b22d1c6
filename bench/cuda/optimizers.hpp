// SPDX-License-Identifier: Apache-2.0
//
// The optimizers for GPUs, for sources that nvcc does not compile.
#pragma once

#include <zbpp/optim/layer.hpp>
#include <zbpp/optim/settings.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace zbpp::bench {

/// `cuda::adamw` or `cuda::sgd`, with the errors of these.
class device_optimizer : public optimizer {
 public:
  using optimizer::step;
  /// As `cuda::basic_adamw::set_schedule`.
  virtual void set_schedule(std::span<double const> rates, std::int64_t updates) = 0;
  /// Steps by the schedule.
  virtual void step(pass_context ctx) = 0;
  /// @return the moments of all weights, in memory of the device
  [[nodiscard]] virtual std::vector<std::span<float>> moments() const = 0;
};

/// @return `cuda::adamw` on the current device
[[nodiscard]] std::unique_ptr<device_optimizer> make_adamw(
    std::vector<optim::layer> layers, optim::adamw_settings const& by);
/// @return `cuda::sgd` on the current device
[[nodiscard]] std::unique_ptr<device_optimizer> make_sgd(
    std::vector<optim::layer> layers, optim::sgd_settings const& by);

}  // namespace zbpp::bench
