// SPDX-License-Identifier: Apache-2.0
//
// Stochastic gradient descent with momentum on the CPU, which can take a step back.
#pragma once

#include <zbpp/optim/detail/elementwise.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/optim/settings.hpp>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::optim {

/// Steps weights against their gradients.
///
/// v = momentum v + g; w -= learning_rate v.
/// @source Sutskever et al., ICML 2013 sec. 2
class sgd final : public detail::elementwise {
 public:
  /// @param layers  what is stepped; it must outlive the optimizer. A layer with a source is found
  ///                again in each step, and left alone where it is frozen.
  /// @throws error (bad_argument) when a layer has not as many gradients as weights,
  ///         or a setting is out of bounds
  explicit sgd(std::vector<layer> layers, sgd_settings settings = {})
      : elementwise(std::move(layers), 1, settings.undo), settings_(detail::checked(settings)) {}

  /// @return the momentum of all weights that were trained, layer after layer; for checkpoints
  [[nodiscard]] std::span<float> momentum() noexcept { return moment(0); }

 private:
  void apply(step_settings const& step, place const& to, change part) override;

  sgd_settings settings_;
};

}  // namespace zbpp::optim

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/optim/impl/sgd.ipp>
#endif
