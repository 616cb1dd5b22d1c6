// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of AdamW.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/optim/adamw.hpp>

#include <cmath>
#include <cstddef>

namespace zbpp::optim {

namespace detail {

struct adamw_numbers {
  float rate;           // of the unbiased mean
  float unbias_square;  // of the mean square
  float keep_weight;    // by decay
  float factor;         // of gradients; 1 multiplies nothing
  float mean;
  float mean_square;
  float epsilon;
};

/// Changes `size` weights, their means, or both.
template <bool ChangesWeights, bool ChangesMoments>
ZBPP_EXACT void adamw_step(
    adamw_numbers n,
    float const* before,
    float* weights,
    float const* gradients,
    float* mean,
    float* square,
    std::size_t size) {
  ZBPP_EXACT_BODY
  for (std::size_t i = 0; i < size; ++i) {
    auto const gradient = n.factor == 1 ? gradients[i] : gradients[i] * n.factor;
    auto const m = n.mean * mean[i] + (1 - n.mean) * gradient;
    auto const v = n.mean_square * square[i] + (1 - n.mean_square) * gradient * gradient;
    if constexpr (ChangesMoments) {
      mean[i] = m;
      square[i] = v;
    }
    if constexpr (ChangesWeights)
      weights[i] =
          n.keep_weight * before[i] - n.rate * m / (std::sqrt(v * n.unbias_square) + n.epsilon);
  }
}

}  // namespace detail

ZBPP_INLINE void adamw::apply(step_settings const& how, place const& to, change what) {
  auto const count = static_cast<double>(how.updates + 1);
  auto const rate = how.learning_rate / (1 - std::pow(static_cast<double>(settings_.mean), count));
  auto const unbias = 1 / (1 - std::pow(static_cast<double>(settings_.mean_square), count));
  detail::adamw_numbers const n{
      .rate = static_cast<float>(rate),
      .unbias_square = static_cast<float>(unbias),
      .keep_weight =
          static_cast<float>(1 - how.learning_rate * static_cast<double>(settings_.weight_decay)),
      .factor = how.factor(),
      .mean = settings_.mean,
      .mean_square = settings_.mean_square,
      .epsilon = settings_.epsilon};
  auto const run = what == change::both      ? detail::adamw_step<true, true>
                   : what == change::weights ? detail::adamw_step<true, false>
                                             : detail::adamw_step<false, true>;
  run(n,
      to.before,
      to.weights,
      to.gradients,
      mean().data() + to.first,
      mean_square().data() + to.first,
      to.size);
}

}  // namespace zbpp::optim
