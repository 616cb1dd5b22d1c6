// SPDX-License-Identifier: Apache-2.0
//
// Parameters of LibTorch for zbpp's optimizers, and threads of ranks for its kernels.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/optim/layer.hpp>
#include <zbpp/torch/detail/libtorch.hpp>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace zbpp::torch {

/// Makes layers for `optim::adamw` or `optim::sgd` of a stage's parameters, one for each that is
/// trained, in order. They get a `grad` of zeros, which must stay the same tensor: W adds to it,
/// the optimizer clears it. Weight decay leaves out parameters of one dimension.
/// @param tied  one of them that stages share, such as an embedding that is the output layer too;
///              undefined for none
/// @throws error (bad_argument) naming a parameter that is not a dense tensor of floats on the host
[[nodiscard]] inline std::vector<optim::layer> layers_of(
    std::vector<at::Tensor> const& parameters, at::Tensor const& tied = {}) {
  std::vector<optim::layer> layers;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto const& each = parameters[i];
    if (!each.defined() || !each.requires_grad()) continue;
    if (each.scalar_type() != at::kFloat || !each.device().is_cpu() || !each.is_contiguous())
      throw error(
          errc::bad_argument,
          "parameter " + std::to_string(i) +
              " is not a contiguous tensor of 32-bit floats on the host; step it by an optimizer "
              "of LibTorch instead");
    if (!each.grad().defined()) each.mutable_grad() = at::zeros_like(each.detach());
    auto const count = static_cast<std::size_t>(each.numel());
    layers.push_back(
        {.weights = {each.data_ptr<float>(), count},
         .gradients = {each.grad().data_ptr<float>(), count},
         .is_tied = tied.defined() && each.is_same(tied),
         .decays = each.dim() > 1});
  }
  return layers;
}

/// Gives an `on_thread_start` that has kernels of LibTorch use `count` threads. Without it, each
/// rank's kernels use as many as there are cores, and ranks get in each other's way. Some sums of
/// LibTorch depend on the number, so a plain loop has the same bits only if it calls
/// `at::set_num_threads` with the same one.
[[nodiscard]] inline std::function<void(std::span<int const>)> intra_op_threads(int count) {
  zbpp::detail::require(count >= 1, "intra_op_threads takes a number of threads from 1");
  return [count](std::span<int const>) { at::set_num_threads(count); };
}

}  // namespace zbpp::torch
