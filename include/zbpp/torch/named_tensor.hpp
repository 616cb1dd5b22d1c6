// SPDX-License-Identifier: Apache-2.0
//
// Tensors with names, and what has them.
#pragma once

#include <zbpp/torch/detail/libtorch.hpp>

#include <string>
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

namespace detail {

/// Appends what a module names.
/// @param prefix  what stands before the names
template <class Named>
void append_named(
    std::vector<named_tensor>& all, Named const& named, std::string const& prefix = {}) {
  for (auto const& each : named) all.push_back({prefix + each.key(), each.value()});
}

}  // namespace detail

}  // namespace zbpp::torch
