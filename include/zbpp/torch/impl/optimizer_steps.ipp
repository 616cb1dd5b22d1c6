// SPDX-License-Identifier: Apache-2.0
//
// How tensors are kept and brought back, and gradients of any type measured.
#pragma once

#include <zbpp/optim/detail/elementwise.hpp>
#include <zbpp/torch/optimizer_steps.hpp>

#include <cmath>
#include <span>

namespace zbpp::torch::detail {

inline void keep(at::Tensor& kept, at::Tensor const& value) {
  bool const fits = kept.defined() && value.defined() && kept.layout() == at::kStrided &&
                    value.layout() == at::kStrided && kept.sizes() == value.sizes() &&
                    kept.scalar_type() == value.scalar_type() && kept.device() == value.device();
  if (fits)
    kept.copy_(value);  // so that steps allocate nothing here
  else
    kept = value.defined() ? value.clone() : at::Tensor();
}

inline gradient_state state_of_gradient(at::Tensor const& gradient) {
  double sum = 0;
  if (gradient.layout() == at::kStrided && gradient.scalar_type() == at::kFloat &&
      gradient.device().is_cpu() && gradient.is_contiguous()) {
    sum = optim::detail::sum_of_squares(
        {gradient.data_ptr<float>(), static_cast<std::size_t>(gradient.numel())});
  } else {
    auto const dense = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
    c10::AutoGradMode const off(false);
    sum = dense.to(at::kDouble).pow(2).sum().item<double>();
  }
  return {sum, std::isfinite(sum)};
}

}  // namespace zbpp::torch::detail
