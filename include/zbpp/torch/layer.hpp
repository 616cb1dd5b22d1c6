// SPDX-License-Identifier: Apache-2.0
//
// The layers of a model: of a torch::nn::Sequential, or a list of modules and callables.
#pragma once

#include <zbpp/torch/detail/forward_call.hpp>
#include <zbpp/torch/module_stage.hpp>
#include <zbpp/torch/named_tensor.hpp>
#include <zbpp/torch/tensors.hpp>

#include <concepts>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp::torch {

/// Models what holds a module of any type, as `torch::nn::AnyModule` does.
template <class Module>
concept any_module = requires(Module& module, at::Tensor const& x) {
  { module.ptr() } -> module_pointer;
  module.any_forward(x);
} && std::copy_constructible<Module>;

/// Models a `torch::nn::Sequential`, or a pointer to one.
template <class Model>
concept sequential_module = requires(Model const& model) {
  requires any_module<std::remove_cvref_t<decltype(*model->begin())>>;
  model->end();
};

/// A layer of a model. Any `stage_module` becomes one.
class layer {
 public:
  /// Takes a module, with its parameters and buffers, or a callable that has no parameters.
  template <class Module>
    requires(!std::same_as<Module, layer> && stage_module<Module>)  // a copy is no module
  layer(Module module)
      : modules_(detail::modules_of(module)), forward_(detail::forward_of(std::move(module))) {}
  /// Takes a module that takes tensors one by one, and gives one.
  template <class Module>
    requires(!std::same_as<Module, layer> && any_module<Module>)
  layer(Module any)
      : modules_{any.ptr().get()},
        forward_(detail::forward_of(
            [any]<std::convertible_to<at::Tensor>... Each>(Each&&... each) mutable {
              return any.template forward<at::Tensor>(at::Tensor(std::forward<Each>(each))...);
            })) {}
  /// Takes a callable and its parameters, whose names are their numbers.
  template <stage_module Callable>
  layer(Callable call, tensors parameters)
      : parameters_(std::move(parameters)), forward_(detail::forward_of(std::move(call))) {}
  /// Takes a callable and the module that it calls and keeps, so that its mode is known, too.
  template <stage_module Callable, module_pointer Module>
  layer(Callable call, Module const& module)
      : modules_(detail::modules_of(module)), forward_(detail::forward_of(std::move(call))) {}

  /// Computes the outputs.
  [[nodiscard]] tensors operator()(tensors const& inputs) const { return forward_(inputs); }
  /// @return its parameters; none where nobody knows them, as of a callable
  [[nodiscard]] std::vector<named_tensor> parameters() const;
  [[nodiscard]] std::vector<named_tensor> buffers() const;
  [[nodiscard]] module_list const& modules() const noexcept { return modules_; }

 private:
  module_list modules_;  // which forward_ keeps
  tensors parameters_;   // of a callable
  std::function<tensors(tensors const&)> forward_;
};

/// A model, or a part of one, as its layers in order, whose parameters it shares. Called, it
/// runs them one after another.
class layer_sequence {
 public:
  /// Takes each module of a `torch::nn::Sequential` as a layer of its name there.
  template <sequential_module Model>
  layer_sequence(Model const& model) {
    for (auto const& each : *model) layers_.emplace_back(each);
    for (auto const& each : model->named_children()) names_.push_back(each.key());
  }
  /// Takes layers, or what becomes layers; their names are their numbers.
  template <std::convertible_to<layer> Layer>
  layer_sequence(std::vector<Layer> layers) {
    for (auto& each : layers) {
      names_.push_back(std::to_string(layers_.size()));
      layers_.emplace_back(std::move(each));
    }
  }

  [[nodiscard]] std::vector<layer> const& layers() const noexcept { return layers_; }
  /// Computes the outputs of the last layer from the inputs of the first.
  [[nodiscard]] tensors operator()(tensors inputs) const {
    for (auto const& each : layers_) inputs = each(inputs);
    return inputs;
  }
  [[nodiscard]] tensors parameters() const;
  [[nodiscard]] module_list modules() const;
  /// @return parameters, then buffers, of all layers by names in the model, for a `model_part`
  [[nodiscard]] std::vector<named_tensor> entries() const;
  /// @return the layers from the number `first` to the one in front of `end`
  [[nodiscard]] layer_sequence part(int first, int end) const;

 private:
  layer_sequence() = default;

  std::vector<layer> layers_;
  std::vector<std::string> names_;
};

}  // namespace zbpp::torch

#include <zbpp/torch/impl/layer.ipp>
