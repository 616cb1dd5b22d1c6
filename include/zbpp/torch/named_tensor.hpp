// SPDX-License-Identifier: Apache-2.0
//
// Tensors with names, and what has them.
#pragma once

#include <zbpp/torch/detail/libtorch.hpp>

#include <string>

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

}  // namespace zbpp::torch
