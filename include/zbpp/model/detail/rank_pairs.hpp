// SPDX-License-Identifier: Apache-2.0
//
// Numbers of directed channels between ranks: their places in an ascending list of pairs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

namespace zbpp::detail {

/// @return how many pairs of an ascending list are less than a sender and receiver
[[nodiscard]] inline int place_of_pair(
    std::span<std::pair<int, int> const> pairs, int from, int to) noexcept {
  auto const at = std::partition_point(pairs.begin(), pairs.end(), [&](auto const& known) {
    return known.first < from || (known.first == from && known.second < to);
  });
  return static_cast<int>(at - pairs.begin());
}

/// @return the place of a sender and receiver in an ascending list; -1 when they are not there
[[nodiscard]] inline int find_pair(
    std::span<std::pair<int, int> const> pairs, int from, int to) noexcept {
  auto const place = place_of_pair(pairs, from, to);
  if (static_cast<std::size_t>(place) == pairs.size()) return -1;
  auto const& found = pairs[static_cast<std::size_t>(place)];
  return found.first == from && found.second == to ? place : -1;
}

}  // namespace zbpp::detail
