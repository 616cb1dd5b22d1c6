// SPDX-License-Identifier: Apache-2.0
//
// Checksums that find torn and altered files, and a digest of parameters: two runs that print the
// same one ended with the same bits.
#pragma once

#include "parameters.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

namespace gpt {

/// Sums up bytes in 64 bits. Every byte that differs makes another sum; it is no protection against
/// somebody who wants two to be the same.
/// @source Fowler, Noll and Vo, FNV-1a
class checksum {
 public:
  /// Takes in bytes.
  void add(std::span<std::byte const> bytes) {
    // By pointers: unoptimized, the iterators of a span take most of the time of a checkpoint.
    auto const* const end = bytes.data() + bytes.size();
    for (auto const* byte = bytes.data(); byte != end; ++byte) {
      value_ ^= static_cast<std::uint64_t>(*byte);
      value_ *= 0x100000001b3U;
    }
  }
  /// Takes in a text.
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }

  /// @return the sum of all that was added
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

/// Sums up one thing.
template <class Bytes>
[[nodiscard]] std::uint64_t checksum_of(Bytes const& all) {
  checksum sum;
  sum.add(all);
  return sum.value();
}

/// Writes 64 bits as 16 hexadecimal digits.
[[nodiscard]] inline std::string hex(std::uint64_t bits) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(bits));
  return digits.data();
}

/// Digests parameters. Digests of the chunks of a model add up to that of the whole, wherever it is
/// cut and in whatever order they are added.
[[nodiscard]] inline std::uint64_t digest(parameter_set const& of) {
  std::uint64_t total = 0;
  for (auto const& e : of.entries()) {
    checksum sum;
    sum.add(std::as_bytes(std::span(&e.part, 1)));
    sum.add(e.name);
    sum.add(std::as_bytes(std::span(of.value(e.at), static_cast<std::size_t>(e.at.size))));
    total += scramble(sum.value());
  }
  return total;
}

}  // namespace gpt
