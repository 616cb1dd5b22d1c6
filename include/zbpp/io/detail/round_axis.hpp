// SPDX-License-Identifier: Apache-2.0
//
// An axis of a drawing, divided at round numbers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace zbpp::detail {

/// Divides an axis at 1, 2 or 5 times a power of ten. It ends at such a tick.
struct round_axis {
  std::int64_t low = 0;
  std::int64_t high = 1;
  std::int64_t step = 1;

  /// Holds all from `least` to `greatest`, in `parts` parts or a few less; a single value stands
  /// near the middle. Values go from 0 to 2^60.
  round_axis(std::int64_t least, std::int64_t greatest, int parts) {
    if (least == greatest) {
      auto const around = std::max<std::int64_t>(greatest / 8, 1);
      least -= std::min(least, around);
      greatest += around;
    }
    auto const length = greatest - least;
    for (int i = 0; length / step >= parts; ++i) step = i % 3 == 1 ? step / 2 * 5 : step * 2;
    low = least / step * step;
    high = greatest / step * step;
    if (high < greatest || high == low) high += step;
  }

  /// @return where a value stands, from 0 to 1
  [[nodiscard]] double share(double value) const {
    return (value - static_cast<double>(low)) / static_cast<double>(high - low);
  }
};

}  // namespace zbpp::detail
