// SPDX-License-Identifier: Apache-2.0
//
// What many times of one thing come to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace zbpp::bench {

/// @return the middle one of some values, of which there is one at least
[[nodiscard]] inline double median(std::vector<double> of) {
  auto const middle = of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2);
  std::nth_element(of.begin(), middle, of.end());
  return *middle;
}

/// @return the median of the ratios of neighbouring turns
[[nodiscard]] inline double median_ratio(
    std::vector<double> const& of, std::vector<double> const& to) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < of.size(); ++i) ratios.push_back(of[i] / to[i]);
  return median(std::move(ratios));
}

}  // namespace zbpp::bench
