// SPDX-License-Identifier: Apache-2.0
//
// Ranks and versions in words, for messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace zbpp::asio::detail {

/// @return numbers as in "2", "2 and 3", "2, 3 and 5"
[[nodiscard]] inline std::string list_text(std::span<int const> numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    text.append(
            i == 0                    ? ""
            : i + 1 == numbers.size() ? " and "
                                      : ", ")
        .append(std::to_string(numbers[i]));
  return text;
}

/// @return ranks in words: "rank 2", "ranks 2, 3 and 5"
[[nodiscard]] inline std::string ranks_text(std::span<int const> ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_text(ranks);
}

/// @return a version as people write it
/// @param version  as ZBPP_VERSION
[[nodiscard]] inline std::string version_text(std::uint32_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace zbpp::asio::detail
