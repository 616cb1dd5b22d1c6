// SPDX-License-Identifier: Apache-2.0
//
// How optimizers step one weight on a GPU: with the bits of those on the CPU.
#pragma once

#include <zbpp/cuda/detail/exact.hpp>
#include <zbpp/optim/detail/adamw_numbers.hpp>
#include <zbpp/optim/settings.hpp>
#include <zbpp/runtime/optimizer.hpp>

#include <cuda_runtime_api.h>

namespace zbpp::cuda::detail {

/// Multiplies a gradient; a factor of 1 multiplies nothing.
__host__ __device__ inline exact scaled(exact gradient, float factor) {
  return factor == 1 ? gradient : gradient * factor;
}

/// Steps by AdamW.
/// @source as optim/adamw.hpp
struct adamw_rule {
  using settings = optim::adamw_settings;
  static constexpr int moments = 2;

  optim::detail::adamw_numbers n;

  __host__ __device__ adamw_rule(settings const& by, step_settings const& how)
      : n(optim::detail::numbers_of(by, how)) {}

  __host__ __device__ exact operator()(exact before, exact raw, exact* moment, bool decays) const {
    auto const gradient = scaled(raw, n.factor);
    exact const one = 1;
    exact const keep = decays ? n.keep_weight : 1;
    moment[0] = n.mean * moment[0] + (one - n.mean) * gradient;
    moment[1] = n.mean_square * moment[1] + (one - n.mean_square) * gradient * gradient;
    return keep * before - n.rate * moment[0] / (sqrt(moment[1] * n.unbias_square) + n.epsilon);
  }
};

/// Steps by gradient descent with momentum.
/// @source as optim/sgd.hpp
struct sgd_rule {
  using settings = optim::sgd_settings;
  static constexpr int moments = 1;

  float rate;
  float factor;
  float momentum;
  float decay;

  __host__ __device__ sgd_rule(settings const& by, step_settings const& how)
      : rate(static_cast<float>(how.learning_rate)),
        factor(how.factor()),
        momentum(by.momentum),
        decay(by.weight_decay) {}

  __host__ __device__ exact operator()(exact before, exact raw, exact* moment, bool decays) const {
    exact const share = decays ? decay : 0;
    moment[0] = momentum * moment[0] + (scaled(raw, factor) + share * before);
    return before - rate * moment[0];
  }
};

}  // namespace zbpp::cuda::detail
