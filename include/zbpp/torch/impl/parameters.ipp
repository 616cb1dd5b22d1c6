// SPDX-License-Identifier: Apache-2.0
//
// How parameters become layers, and how gradients of tied ones are summed.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/torch/parameters.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

namespace zbpp::torch {

inline std::vector<optim::layer> layers_of(tensors const& parameters, tensors const& tied) {
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
         .is_tied = std::ranges::any_of(tied, [&](auto const& t) { return each.is_same(t); }),
         .decays = each.dim() > 1});
  }
  return layers;
}

inline tied_parameter::tied_parameter(tensors leaves) : leaves_(std::move(leaves)) {
  zbpp::detail::require(!leaves_.empty(), "a tied_parameter has a leaf for each use; it got none");
  c10::AutoGradMode const off(false);
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    auto const& each = leaves_[i];
    auto const refuse = [i](char const* text) {
      throw error(errc::bad_argument, "leaf " + std::to_string(i) + " of a tied_parameter " + text);
    };
    if (!each.defined() || !each.is_leaf() || !each.requires_grad())
      refuse("is no leaf that is trained; make it with tied_parameter::leaf");
    if (i == 0) continue;
    auto const& first = leaves_.front();
    if (each.sizes() != first.sizes() || each.scalar_type() != first.scalar_type())
      refuse("has another type or other sizes than the first; all are the same parameter");
    for (std::size_t k = 0; k < i; ++k)
      if (each.is_alias_of(leaves_[k]))
        refuse("has the memory of another one; make it with tied_parameter::leaf");
    each.copy_(first);
  }
}

inline at::Tensor tied_parameter::leaf(at::Tensor const& parameter) {
  return parameter.detach().clone().requires_grad_();
}

inline void tied_parameter::sum_gradients() const {
  c10::AutoGradMode const off(false);
  at::Tensor sum;
  for (auto const& each : leaves_) {
    if (!each.grad().defined()) continue;
    if (sum.defined())
      sum.add_(each.grad().to(sum.device()));
    else
      sum = each.grad().clone();
  }
  if (!sum.defined()) return;
  for (auto const& each : leaves_) {
    if (each.grad().defined())
      each.mutable_grad().copy_(sum);
    else
      each.mutable_grad() = sum.to(each.device(), each.scalar_type(), false, /*copy=*/true);
  }
}

inline std::function<void(std::span<int const>)> intra_op_threads(int count) {
  zbpp::detail::require(count >= 1, "intra_op_threads takes a number of threads from 1");
  return [count](std::span<int const>) { at::set_num_threads(count); };
}

}  // namespace zbpp::torch
