// SPDX-License-Identifier: Apache-2.0
//
// Tensors with names, and the modules that have them.
#pragma once

#include <zbpp/torch/detail/libtorch.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::torch {

/// Names a tensor.
struct named_tensor {
  std::string name;
  at::Tensor value;
};

/// Models a module of LibTorch, as a pointer or a holder.
template <class Module>
concept module_pointer = requires(Module const& module) {
  module->named_parameters();
  module->named_buffers();
};

/// Lists modules, each of which stands for all that is in it, too.
using module_list = std::vector<::torch::nn::Module*>;

/// Puts modules into evaluation mode until what it gives ends, when each is in the mode that it was
/// in. Of two scopes of a module, the one that began last ends first.
[[nodiscard]] inline std::shared_ptr<void> evaluation_scope(module_list const& modules) {
  struct modes {
    std::vector<std::pair<::torch::nn::Module*, bool>> before;  // parents first
    ~modes() {
      for (auto const& [module, was_training] : before) module->train(was_training);
    }
  };
  auto const kept = std::make_shared<modes>();
  for (auto* const root : modules)
    root->apply(
        [&](::torch::nn::Module& each) { kept->before.emplace_back(&each, each.is_training()); });
  for (auto* const root : modules) root->eval();
  return kept;
}

namespace detail {

/// @return the modules of a stage or layer; none of a callable, or of modules that are const
template <class Module>
[[nodiscard]] module_list modules_of(Module from) {
  if constexpr (module_pointer<Module> && requires { module_list{&*from}; })
    return from ? module_list{&*from} : module_list{};
  else if constexpr (requires { from.modules(); })
    return from.modules();
  else
    return {};
}

/// Appends what a module names.
/// @param prefix  what stands before the names
template <class Named>
void append_named(
    std::vector<named_tensor>& all, Named const& named, std::string const& prefix = {}) {
  for (auto const& each : named) all.push_back({prefix + each.key(), each.value()});
}

}  // namespace detail

}  // namespace zbpp::torch
