// SPDX-License-Identifier: Apache-2.0
//
// How gradients are judged.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/runtime/gradient_state.hpp>

#include <algorithm>
#include <cmath>
#include <span>

namespace zbpp {

ZBPP_INLINE gradient_verdict
judge(std::span<gradient_state const> layers, double clip, double scale) noexcept {
  gradient_verdict verdict;
  double sum = 0;
  for (auto const& layer : layers) {
    sum += layer.sum_of_squares;
    verdict.is_finite = verdict.is_finite && layer.is_finite;
  }
  verdict.norm = std::sqrt(sum) / scale;
  verdict.is_finite = verdict.is_finite && std::isfinite(verdict.norm);
  if (verdict.is_finite && clip > 0)
    verdict.coefficient = std::min(1.0, clip / (verdict.norm + 1e-6));
  return verdict;
}

}  // namespace zbpp
