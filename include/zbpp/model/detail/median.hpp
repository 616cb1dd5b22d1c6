// SPDX-License-Identifier: Apache-2.0
//
// What many measured times of one thing come to.
#pragma once

#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <span>

namespace zbpp::detail {

/// Finds the median of some times, of which there is one at least, and changes their order.
/// @return of an even number of them the greater one of the two in the middle
[[nodiscard]] inline ticks median(std::span<ticks> times) {
  auto const middle = times.begin() + std::ssize(times) / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace zbpp::detail
