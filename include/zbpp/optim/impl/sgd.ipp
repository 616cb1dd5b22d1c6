// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of stochastic gradient descent.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/optim/sgd.hpp>

#include <cstddef>

namespace zbpp::optim {

namespace detail {

struct sgd_numbers {
  float rate;
  float factor;  // of gradients; 1 multiplies nothing
  float momentum;
  float decay;
};

/// Changes `size` weights, their momentum, or both.
template <bool ChangesWeights, bool ChangesMoments>
ZBPP_EXACT void sgd_step(
    sgd_numbers n,
    float const* before,
    float* weights,
    float const* gradients,
    float* momentum,
    std::size_t size) {
  ZBPP_EXACT_BODY
  for (std::size_t i = 0; i < size; ++i) {
    auto const gradient = n.factor == 1 ? gradients[i] : gradients[i] * n.factor;
    auto const v = n.momentum * momentum[i] + (gradient + n.decay * before[i]);
    if constexpr (ChangesMoments) momentum[i] = v;
    if constexpr (ChangesWeights) weights[i] = before[i] - n.rate * v;
  }
}

}  // namespace detail

ZBPP_INLINE void sgd::apply(step_settings const& step, place const& to, change part) {
  detail::sgd_numbers const n{
      static_cast<float>(step.learning_rate),
      step.factor(),
      settings_.momentum,
      to.decays ? settings_.weight_decay : 0};
  auto const run = part == change::both      ? detail::sgd_step<true, true>
                   : part == change::weights ? detail::sgd_step<true, false>
                                             : detail::sgd_step<false, true>;
  run(n, to.before, to.weights, to.gradients, momentum().data() + to.first, to.size);
}

}  // namespace zbpp::optim
