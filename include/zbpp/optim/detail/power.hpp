// SPDX-License-Identifier: Apache-2.0
//
// Powers with the same bits on the host and in a kernel: libraries do not round `pow` alike.
#pragma once

#include <zbpp/config.hpp>

#include <cmath>
#include <cstdint>

namespace zbpp::optim::detail {

/// Multiplies and rounds. As no compiler sees a product here, none fuses it with a sum.
[[nodiscard]] ZBPP_HOST_DEVICE inline double rounded_product(double a, double b) {
  return std::fma(a, b, 0.0);
}

/// The sum of two doubles, of which the first is the nearest to it.
struct double_double {
  double high;
  double low;
};

/// @return the product, whose error is a few parts in 2^104
/// @source Dekker, Numerische Mathematik 18 (1971), section 5, with the error of a product by fma
[[nodiscard]] ZBPP_HOST_DEVICE inline double_double product(double_double a, double_double b) {
  auto const high = rounded_product(a.high, b.high);
  auto const rest =
      std::fma(a.high, b.low, std::fma(a.low, b.high, std::fma(a.high, b.high, -high)));
  auto const sum = high + rest;
  return {sum, rest - (sum - high)};
}

/// @return base^count, for a base from 0 to 1 and a count from 0, rounded once
[[nodiscard]] ZBPP_HOST_DEVICE inline double power(double base, std::int64_t count) {
  double_double result{1, 0};
  for (double_double square{base, 0}; count > 0; count /= 2) {
    if (count % 2 == 1) result = product(result, square);
    square = product(square, square);
  }
  return result.high;
}

}  // namespace zbpp::optim::detail
