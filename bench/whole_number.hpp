// SPDX-License-Identifier: Apache-2.0
//
// Reads the numbers that the programs of this folder are called with.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace zbpp::bench {

/// @return the number that a text consists of, and nothing else; none if it is no whole number
///         between 0 and 2^31 - 1
[[nodiscard]] inline std::optional<std::int32_t> whole_number(std::string_view text) {
  std::int32_t value = 0;
  auto const end = text.data() + text.size();
  auto const [stop, fault] = std::from_chars(text.data(), end, value);
  if (fault != std::errc{} || stop != end || value < 0) return std::nullopt;
  return value;
}

}  // namespace zbpp::bench
