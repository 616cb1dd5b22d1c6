// SPDX-License-Identifier: Apache-2.0
//
// What the layers of a model cost, measured: times and bytes, for `partition` and for plans.
#pragma once

#include <zbpp/model/layers.hpp>
#include <zbpp/torch/detail/live_memory.hpp>
#include <zbpp/torch/layer.hpp>
#include <zbpp/torch/tensors.hpp>

#include <functional>
#include <vector>

namespace zbpp::torch {

/// Says how layers are measured.
struct measure_options {
  int warm_up = 2;  ///< runs that do not count
  int runs = 7;     ///< of which times are the medians
  /// Whether plans may run a layer's F again instead of keeping its activation.
  bool can_recompute = false;
};

/// Measures each layer of a model as a stage of its own, one after another, with the threads that
/// kernels use here: call `at::set_num_threads` with as many as a rank will use.
///
/// Times are medians. `activation` is what F keeps until B, inputs included; `output_gradient` what
/// B adds for W at least; `weight_gradient_input` what W keeps; `edge` what it sends, by
/// `edge_size`; `workspace` the most that a pass takes beyond these. Parameters are not counted.
///
/// The model is left as it was, also when a layer throws: the bytes of the tensors that operations
/// of LibTorch are given, so parameters and buffers, those of callables, too; the `grad` of
/// parameters; LibTorch's default generators. What nobody can see stays as the runs leave it: of a
/// callable, numbers that are no tensors, tensors that it puts in place of others, and what it
/// writes through `data_ptr()`. A layer is run in the mode, training or not, that it is in. While
/// it runs, there is a copy of its tensors.
/// @param batch  the inputs of the first layer
/// @param loss   gives one number from the outputs of the last layer, and is measured with it
/// @return the costs of each layer, in order
/// @throws error (bad_argument) when there is no layer, or no run, or a layer that is a module has
///         other parameters or buffers afterwards; (pass_failed) naming the layer that threw
///         something else, with that nested
[[nodiscard]] std::vector<layer_costs> measure_layers(
    std::vector<layer> const& layers,
    tensors const& batch,
    std::function<at::Tensor(tensors const& outputs)> const& loss,
    measure_options const& options = {});

}  // namespace zbpp::torch

#include <zbpp/torch/impl/measure_layers.ipp>
