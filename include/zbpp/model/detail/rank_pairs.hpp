// SPDX-License-Identifier: Apache-2.0
//
// Numbers of directed channels between ranks: their places in an ascending list of pairs.
#pragma once

#include <algorithm>
#include <span>
#include <utility>

namespace zbpp::detail {

/// @return the place of a sender and receiver in an ascending list; -1 when they are not there
[[nodiscard]] inline int find_pair(
    std::span<std::pair<int, int> const> pairs, int from, int to) noexcept {
  auto const at = std::ranges::lower_bound(pairs, std::pair(from, to));
  bool const found = at != pairs.end() && *at == std::pair(from, to);
  return found ? static_cast<int>(at - pairs.begin()) : -1;
}

}  // namespace zbpp::detail
