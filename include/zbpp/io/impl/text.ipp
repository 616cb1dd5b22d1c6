// SPDX-License-Identifier: Apache-2.0
//
// How numbers become decimals, and which bytes of a name may stand in a line.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/io/text.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zbpp {

namespace detail {

ZBPP_INLINE std::string decimal(std::int64_t value, std::int64_t parts) {
  auto text = std::to_string(value / parts);
  auto rest = value % parts;
  if (rest != 0) text += '.';
  for (; rest != 0; rest %= parts) {
    rest *= 10;
    text += static_cast<char>('0' + rest / parts);
  }
  return text;
}

/// @return the length of the valid UTF-8 character that a text begins with; 0 when there is none
/// @source The Unicode Standard 15, table 3-7
[[nodiscard]] ZBPP_INLINE std::size_t character_length(std::string_view text) noexcept {
  auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  auto const first = byte(0);
  if (first < 0x80) return 1;
  auto const length = first >= 0xF0 ? 4U : first >= 0xE0 ? 3U : 2U;
  if (first < 0xC2 || first > 0xF4) return 0;
  auto const low = first == 0xE0 ? 0xA0U : first == 0xF0 ? 0x90U : 0x80U;
  auto const high = first == 0xED ? 0x9FU : first == 0xF4 ? 0x8FU : 0xBFU;
  if (byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i)
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  return length;
}

ZBPP_INLINE std::string json_text(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string result = "\"";
  while (!text.empty()) {
    auto const length = character_length(text);
    if (length == 0) return {};
    auto const first = static_cast<unsigned char>(text.front());
    if (first == '"' || first == '\\') result += '\\';
    if (first < 0x20)
      result.append("\\u00").append({digits[first / 16], digits[first % 16]});
    else
      result += text.substr(0, length);
    text.remove_prefix(length);
  }
  return result + '"';
}

}  // namespace detail

ZBPP_INLINE std::string number_text(ticks time, time_unit unit) {
  return detail::decimal(time, ticks_in(unit));
}

ZBPP_INLINE std::string number_text(double value) {
  if (value == 0) return "0";
  std::array<char, 32> text{};
  auto const shortest = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), shortest.ptr};
}

ZBPP_INLINE std::string fixed_text(double value, int decimals) {
  std::array<char, 400> text{};
  auto const end = std::to_chars(
      text.data(), text.data() + text.size(), value, std::chars_format::fixed, decimals);
  return {text.data(), end.ptr};
}

ZBPP_INLINE std::string fixed_text(ticks time, time_unit unit, int decimals) {
  return fixed_text(static_cast<double>(time) / static_cast<double>(ticks_in(unit)), decimals);
}

ZBPP_INLINE std::string time_text(ticks time, time_unit unit) {
  return number_text(time, unit).append(" ").append(to_string(unit));
}

ZBPP_INLINE std::string seconds_text(std::chrono::milliseconds time) {
  auto const spent = std::max<std::int64_t>(time.count(), 0);
  auto const tenths = spent / 100 + spent % 100 / 50;
  return detail::joined(tenths / 10, ".", tenths % 10, " s");
}

ZBPP_INLINE std::string one_line(std::string_view text, std::size_t most) {
  std::string result;
  for (std::size_t count = 0; !text.empty() && count < most; ++count) {
    auto const length = detail::character_length(text);
    auto const first = static_cast<unsigned char>(text.front());
    if (length == 0)
      result += '?';
    else if (first < 0x20 || first == 0x7F)
      result += ' ';
    else
      result += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

}  // namespace zbpp
