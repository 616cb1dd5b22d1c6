// SPDX-License-Identifier: Apache-2.0
//
// What tests with LibTorch share: Catch2 beside LibTorch's macros, bits of tensors, live memory.
#pragma once

#include <zbpp/torch/detail/live_memory.hpp>
#include <zbpp/torch/torch.hpp>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

// LibTorch may log with glog, whose macro has the name of one of Catch2.
#undef CHECK
#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace zbpp::test {

/// @return whether both are undefined, or have the same sizes, type and bits
[[nodiscard]] inline bool same_bits(at::Tensor const& a, at::Tensor const& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  at::Tensor const x = a.detach().contiguous();
  at::Tensor const y = b.detach().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

/// @return whether all pairs are the same
[[nodiscard]] inline bool same_bits(
    std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](auto const& x, auto const& y) {
    return same_bits(x, y);
  });
}

/// @return a random tensor that depends on the numbers alone
[[nodiscard]] inline at::Tensor random_tensor(at::IntArrayRef sizes, std::int64_t number) {
  return at::randn(
      sizes, torch::generator_for({.seed = run_seed(), .operation = number}), at::kFloat);
}

using torch::detail::live_memory;

}  // namespace zbpp::test
