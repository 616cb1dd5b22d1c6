// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic under the kernels: sums in a fixed order and an exponential that compilers
// vectorise. Both give the same bits wherever the numbers lie in memory.
#pragma once

#include "config.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace gpt {

/// Adds term(0) ... term(count - 1) in 16 interleaved partial sums, then those pairwise.
template <class Term>
[[nodiscard]] inline float sum(index count, Term term) {
  constexpr index lanes = 16;
  std::array<float, lanes> partial{};
  auto* const lane = partial.data();
  index i = 0;
  for (; i + lanes <= count; i += lanes)
    for (index l = 0; l < lanes; ++l) lane[l] += term(i + l);
  for (index l = 0; i + l < count; ++l) lane[l] += term(i + l);
  for (index width = lanes / 2; width > 0; width /= 2)
    for (index l = 0; l < width; ++l) lane[l] += lane[l + width];
  return lane[0];
}

/// Gives the largest of `count` > 0 numbers.
[[nodiscard]] inline float largest(float const* x, index count) {
  constexpr index lanes = 16;
  std::array<float, lanes> partial;
  partial.fill(x[0]);
  auto* const lane = partial.data();
  index i = 0;
  for (; i + lanes <= count; i += lanes)
    for (index l = 0; l < lanes; ++l) lane[l] = lane[l] < x[i + l] ? x[i + l] : lane[l];
  for (index l = 0; i + l < count; ++l) lane[l] = lane[l] < x[i + l] ? x[i + l] : lane[l];
  return *std::max_element(partial.begin(), partial.end());
}

/// Gives e^x to within 2 units in the last place; x is limited to [-87, 88], nan stays nan.
/// @source the polynomial of expf in Cephes, S. Moshier
[[nodiscard]] inline float exponential(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  // Adding 1.5 * 2^23 leaves the nearest whole number of powers of two in the low bits.
  constexpr float round = 12582912.0F;
  float const shifted = x * 1.44269504F + round;
  float const power = shifted - round;
  float const rest = (x - power * 0.693359375F) - power * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * rest + 1.3981999507e-3F;
  p = p * rest + 8.3334519073e-3F;
  p = p * rest + 4.1665795894e-2F;
  p = p * rest + 1.6666665459e-1F;
  p = p * rest + 5.0000001201e-1F;
  p = p * rest * rest + rest + 1.0F;
  auto const exponent = (std::bit_cast<std::uint32_t>(shifted) + 127U) << 23U;
  return p * std::bit_cast<float>(exponent);
}

/// Gives 1 / (1 + e^-x).
[[nodiscard]] inline float sigmoid(float x) { return 1.0F / (1.0F + exponential(-x)); }

}  // namespace gpt
