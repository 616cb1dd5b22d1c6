// SPDX-License-Identifier: Apache-2.0
//
// Numbers that travel as bytes between the members of a group: which part belongs to which member,
// and how parts are added up.
#pragma once

#include <zbpp/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

namespace zbpp::detail {

/// Adds numbers that lie in bytes, in any alignment, to others.
template <class Number>
void add_bytes(std::span<Number> sums, std::span<std::byte const> from) {
  std::array<Number, 1024> some{};
  for (std::size_t i = 0; i < sums.size(); i += some.size()) {
    auto const count = std::min(some.size(), sums.size() - i);
    std::memcpy(some.data(), from.data() + i * sizeof(Number), count * sizeof(Number));
    for (std::size_t k = 0; k < count; ++k) sums[i + k] += some[k];
  }
}

/// Copies bytes over others of the same size, which may be the same.
inline void copy_bytes(std::span<std::byte> to, std::span<std::byte const> from) {
  if (!from.empty()) std::memmove(to.data(), from.data(), from.size());
}

/// @return the part of `values` that belongs to a member of a group; together they are all of it
template <class Number>
[[nodiscard]] std::span<Number> part_of(std::span<Number> values, int place, int size) {
  auto const begin = [&](int of) { return values.size() * index(of) / index(size); };
  return values.subspan(begin(place), begin(place + 1) - begin(place));
}

}  // namespace zbpp::detail
