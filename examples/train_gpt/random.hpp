// SPDX-License-Identifier: Apache-2.0
//
// Random numbers without a generator: each is a pure function of what it is for, so that it does
// not matter which rank asks, in which order, or how often.
#pragma once

#include <zbpp/config.hpp>

#include <cmath>
#include <cstdint>
#include <numbers>

namespace gpt {

/// Scrambles 64 bits.
/// @source splitmix64, Steele, Lea and Flood, OOPSLA 2014
[[nodiscard]] ZBPP_HOST_DEVICE constexpr std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

/// Gives 64 random bits that belong to a list of numbers.
template <class... Numbers>
[[nodiscard]] ZBPP_HOST_DEVICE constexpr std::uint64_t random_bits(
    std::uint64_t seed, Numbers... of) {
  auto bits = scramble(seed);
  ((bits = scramble(bits ^ static_cast<std::uint64_t>(of))), ...);
  return bits;
}

/// @return where a sequence of a microbatch of a step starts, among some places
[[nodiscard]] ZBPP_HOST_DEVICE constexpr std::uint64_t random_start(
    std::uint64_t seed,
    std::int64_t step,
    std::int64_t microbatch,
    std::int64_t sequence,
    std::uint64_t places) {
  return random_bits(random_bits(seed, step, microbatch), sequence) % places;
}

/// Turns random bits into a number of the normal distribution.
/// @source Box and Muller, 1958
[[nodiscard]] inline float normal(std::uint64_t bits) {
  auto const radius = (static_cast<double>(bits >> 32U) + 0.5) / 4294967296.0;
  auto const turn = static_cast<double>(bits & 0xffffffffU) / 4294967296.0;
  return static_cast<float>(
      std::sqrt(-2.0 * std::log(radius)) * std::cos(2.0 * std::numbers::pi * turn));
}

}  // namespace gpt
