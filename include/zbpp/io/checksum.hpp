// SPDX-License-Identifier: Apache-2.0
//
// Checksums that find torn and altered files, and digests of numbers: two runs that print the same
// one have the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace zbpp {

/// Sums up bytes in 64 bits. Every byte that differs makes another sum; it is no protection against
/// somebody who wants two to be the same.
/// @source Fowler, Noll and Vo, FNV-1a
class checksum {
 public:
  /// Takes in bytes.
  void add(std::span<std::byte const> piece) noexcept {
    // By pointers: unoptimized, the iterators of a span take most of the time of a checkpoint.
    auto const* const end = piece.data() + piece.size();
    for (auto const* byte = piece.data(); byte != end; ++byte)
      value_ = (value_ ^ static_cast<std::uint64_t>(*byte)) * 0x100000001b3U;
  }
  /// Takes in a text.
  void add(std::string_view text) noexcept { add(std::as_bytes(std::span(text))); }

  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

template <class Bytes>
[[nodiscard]] std::uint64_t checksum_of(Bytes const& all) noexcept {
  checksum sum;
  sum.add(all);
  return sum.value();
}

/// @return 64 bits as 16 hexadecimal digits
[[nodiscard]] inline std::string hex_text(std::uint64_t bits) {
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4)
    text += "0123456789abcdef"[(bits >> static_cast<unsigned>(shift)) % 16];
  return text;
}

}  // namespace zbpp
