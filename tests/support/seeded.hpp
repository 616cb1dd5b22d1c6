// SPDX-License-Identifier: Apache-2.0
//
// Random numbers for tests that can be repeated.
//
// The seed is a fixed number, or that of the environment variable ZBPP_SEED. It is printed once per
// run, and with each failed check after ZBPP_SEEDED. The numbers are the same with any standard
// library: its engines are specified to the bit, its distributions are not, so we use none.
#pragma once

#include <support/catch.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace zbpp::test {

/// Reads a seed from its decimal text.
/// @throws std::invalid_argument when the text is not a number of 64 bits
inline std::uint64_t parse_seed(std::string_view text) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t value = 0;
  bool valid = !text.empty();
  for (char c : text) {
    if (c < '0' || c > '9') {
      valid = false;
      break;
    }
    auto digit = static_cast<std::uint64_t>(c - '0');
    if (value > (most - digit) / 10) {
      valid = false;
      break;
    }
    value = value * 10 + digit;
  }
  if (!valid) {
    throw std::invalid_argument(
        "ZBPP_SEED is '" + std::string(text) + "'; it must be a decimal number below 2^64");
  }
  return value;
}

/// The seed of this run; the first call prints it.
inline std::uint64_t run_seed() {
  static std::uint64_t const seed = [] {
    char const* text = std::getenv("ZBPP_SEED");
    std::uint64_t value = text == nullptr ? 20241117 : parse_seed(text);
    std::fprintf(stderr, "ZBPP_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

/// A generator of random values; the same seed and stream give the same values everywhere.
class seeded_random {
 public:
  /// @param stream  tells generators of one run apart, such as the number of a trial
  explicit seeded_random(std::uint64_t stream = 0) : seeded_random(run_seed(), stream) {}

  seeded_random(std::uint64_t seed, std::uint64_t stream)
      : seed_(seed), engine_(mix(seed, stream)) {}

  std::uint64_t seed() const { return seed_; }

  /// 64 random bits.
  std::uint64_t bits() { return engine_(); }

  /// Uniform in [low, high], both included.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    if (low > high) {
      throw std::invalid_argument("seeded_random::integer: low is above high");
    }
    auto range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
    auto offset = range == std::numeric_limits<std::uint64_t>::max() ? bits() : below(range + 1);
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + offset);
  }

  /// Uniform in [0, 1), a multiple of 2^-53.
  double real() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  /// Uniform in [low, high).
  double real(double low, double high) { return low + (high - low) * real(); }

  /// True with the given probability.
  bool chance(double probability) { return real() < probability; }

  /// One of the items, of which there must be one.
  template <class Item>
  Item& pick(std::span<Item> items) {
    if (items.empty()) {
      throw std::invalid_argument("seeded_random::pick: nothing to pick from");
    }
    return items[static_cast<std::size_t>(below(items.size()))];
  }

  /// Puts the items into a random order.
  template <class Item>
  void shuffle(std::span<Item> items) {
    for (std::size_t left = items.size(); left > 1; --left) {
      using std::swap;
      swap(items[left - 1], items[static_cast<std::size_t>(below(left))]);
    }
  }

 private:
  /// Uniform in [0, count), count > 0. Drops the last, incomplete run of `count` values.
  std::uint64_t below(std::uint64_t count) {
    std::uint64_t const incomplete =
        (std::numeric_limits<std::uint64_t>::max() % count + 1) % count;
    std::uint64_t value = bits();
    while (value > std::numeric_limits<std::uint64_t>::max() - incomplete) {
      value = bits();
    }
    return value % count;
  }

  /// Spreads seed and stream over 64 bits (the finalizer of splitmix64).
  static std::uint64_t mix(std::uint64_t seed, std::uint64_t stream) {
    std::uint64_t value = seed + 0x9e3779b97f4a7c15U * (stream + 1);
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
    return value ^ (value >> 31);
  }

  std::uint64_t seed_;
  std::mt19937_64 engine_;
};

}  // namespace zbpp::test

/// Declares a generator `name` for the given stream; failed checks in this scope print its seed.
#define ZBPP_SEEDED(name, stream)                                                                  \
  ::zbpp::test::seeded_random name{static_cast<std::uint64_t>(stream)};                            \
  INFO("ZBPP_SEED=" << name.seed() << " stream " << (stream))
