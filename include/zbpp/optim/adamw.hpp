// SPDX-License-Identifier: Apache-2.0
//
// AdamW on the CPU, which can take a step back.
#pragma once

#include <zbpp/optim/detail/elementwise.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/optim/settings.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::optim {

/// Steps weights by Adam with decoupled weight decay. The bias of the moments
/// of a layer is corrected by the steps that the layer has taken.
/// @source Kingma and Ba, arXiv 1412.6980 alg. 1; Loshchilov and Hutter, arXiv 1711.05101 alg. 2
class adamw final : public detail::elementwise {
 public:
  /// @param layers  what is stepped; it must outlive the optimizer. A layer with a source is found
  ///                again in each step, and left alone where it is frozen.
  /// @throws error (bad_argument) when a layer has not as many gradients as weights,
  ///         or a setting is out of bounds
  explicit adamw(std::vector<layer> layers, adamw_settings settings = {})
      : elementwise(std::move(layers), 2, settings.undo), settings_(detail::checked(settings)) {}

  /// @return the mean gradients of all trained weights, layer after layer; for checkpoints
  [[nodiscard]] std::span<float> mean() noexcept { return moment(0); }
  /// @return the mean squared gradients of all trained weights, likewise
  [[nodiscard]] std::span<float> mean_square() noexcept { return moment(1); }
  /// @return how many steps of the run each layer has not taken, because it was frozen; for
  ///         checkpoints. 0 where they say nothing; all for a layer that joins the run.
  [[nodiscard]] std::span<std::int64_t> missed_steps() noexcept { return missed(); }

 private:
  void apply(step_settings const& step, place const& to, change part) override;

  adamw_settings settings_;
};

}  // namespace zbpp::optim

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/optim/impl/adamw.ipp>
#endif
