// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of AdamW.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/detail/adamw_numbers.hpp>

#include <cmath>
#include <cstddef>

namespace zbpp::optim {

namespace detail {

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
    auto const m = n.beta1 * mean[i] + (1 - n.beta1) * gradient;
    auto const v = n.beta2 * square[i] + (1 - n.beta2) * gradient * gradient;
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

ZBPP_INLINE void adamw::apply(step_settings const& step, place const& to, change part) {
  auto const run = part == change::both      ? detail::adamw_step<true, true>
                   : part == change::weights ? detail::adamw_step<true, false>
                                             : detail::adamw_step<false, true>;
  auto numbers = detail::numbers_of(settings_, step, to.missed);
  if (!to.decays) numbers.keep_weight = 1;
  run(numbers,
      to.before,
      to.weights,
      to.gradients,
      mean().data() + to.first,
      mean_square().data() + to.first,
      to.size);
}

}  // namespace zbpp::optim
