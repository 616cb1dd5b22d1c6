// SPDX-License-Identifier: Apache-2.0
//
// What many times of one thing come to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zbpp::bench {

/// @return the middle one of some values, of which there is one at least
[[nodiscard]] inline double median(std::vector<double> of) {
  auto const middle = of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2);
  std::nth_element(of.begin(), middle, of.end());
  return *middle;
}

}  // namespace zbpp::bench
