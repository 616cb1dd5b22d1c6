// SPDX-License-Identifier: Apache-2.0
//
// What the layers of a model cost, measured: times and bytes, for `partition` and for plans.
#pragma once

#include <zbpp/model/layers.hpp>
#include <zbpp/torch/detail/live_memory.hpp>
#include <zbpp/torch/module_stage.hpp>
#include <zbpp/torch/tensors.hpp>

#include <concepts>
#include <functional>
#include <utility>
#include <vector>

namespace zbpp::torch {

/// Says how layers are measured.
struct measure_options {
  int warm_up = 2;  ///< runs that do not count
  int runs = 7;     ///< of which times are the medians
  /// Whether plans may run a layer's F again instead of keeping its activation.
  bool can_recompute = false;
};

/// Is a layer as `measure_layers` takes it. Any `stage_module` becomes one.
class layer {
 public:
  template <class Module>
    requires(!std::same_as<Module, layer> && stage_module<Module>)  // a copy is no module
  layer(Module module) : forward_(detail::forward_of(std::move(module))) {}

  /// Computes the outputs.
  [[nodiscard]] tensors operator()(tensors const& inputs) const { return forward_(inputs); }

 private:
  std::function<tensors(tensors const&)> forward_;
};

/// Measures each layer of a model as a stage of its own, one after another, with the threads that
/// kernels use here: call `at::set_num_threads` with as many as a rank will use.
///
/// Times are medians. `activation` is what F keeps until B, inputs included; `output_gradient` what
/// B adds for W at least; `weight_gradient_input` what W keeps; `edge` what it sends, by
/// `edge_size`; `workspace` the most that a pass takes beyond these. Parameters are not counted.
/// What W computes is added to the `grad` of parameters: clear them afterwards.
/// @param batch  the inputs of the first layer
/// @param loss   gives one number from the outputs of the last layer, and is measured with it
/// @return the costs of each layer, in order
/// @throws error (bad_argument) when there is no layer, or no run; what a layer throws
[[nodiscard]] std::vector<layer_costs> measure_layers(
    std::vector<layer> const& layers,
    tensors const& batch,
    std::function<at::Tensor(tensors const& outputs)> const& loss,
    measure_options const& options = {});

}  // namespace zbpp::torch

#include <zbpp/torch/impl/measure_layers.ipp>
