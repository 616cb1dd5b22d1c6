// SPDX-License-Identifier: Apache-2.0
//
// How names, numbers and times become text: the same in messages, drawings and files.
#pragma once

#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zbpp {

/// The most bytes of a text that zbpp reads: 256 MiB. A plan of a million passes takes about 80
/// MiB.
inline constexpr std::size_t largest_text = std::size_t{1} << 28;

/// Says in which unit times are written.
enum class time_unit : std::uint8_t { nanoseconds, microseconds, milliseconds, seconds };

/// @return the name of a unit: ns, us, ms or s
[[nodiscard]] constexpr std::string_view to_string(time_unit unit) noexcept {
  switch (unit) {
    case time_unit::nanoseconds: return "ns";
    case time_unit::microseconds: return "us";
    case time_unit::milliseconds: return "ms";
    case time_unit::seconds: return "s";
  }
  return "?";
}

/// @return the nanoseconds of one `unit`
[[nodiscard]] constexpr ticks ticks_in(time_unit unit) noexcept {
  ticks size = 1;
  for (int i = 0; i < static_cast<int>(unit); ++i) size *= 1000;
  return size;
}

namespace detail {

/// Writes a fraction exactly and without needless zeros; `parts` is a power of ten.
[[nodiscard]] inline std::string decimal(std::int64_t value, std::int64_t parts) {
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
[[nodiscard]] inline std::size_t character_length(std::string_view text) noexcept {
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

}  // namespace detail

/// Writes a time of at least 0 without its unit: exact, without needless zeros.
[[nodiscard]] inline std::string number_text(ticks time, time_unit unit) {
  return detail::decimal(time, ticks_in(unit));
}

/// @return the shortest decimal that reads back to the same double
[[nodiscard]] inline std::string number_text(double value) {
  if (value == 0) return "0";
  std::array<char, 32> text{};
  auto const shortest = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), shortest.ptr};
}

/// Writes a time of at least 0 with its unit, exactly, as in `12.5 ms`.
[[nodiscard]] inline std::string time_text(ticks time, time_unit unit) {
  return number_text(time, unit).append(" ").append(to_string(unit));
}

/// Writes how long something took in seconds, rounded to a tenth, as in `61.2 s`; a negative time
/// as 0.
[[nodiscard]] inline std::string seconds_text(std::chrono::milliseconds time) {
  auto const spent = std::max<std::int64_t>(time.count(), 0);
  auto const tenths = spent / 100 + spent % 100 / 50;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

/// Makes a text fit for one line of any format: control characters become spaces, bytes that are
/// not UTF-8 become question marks, and what exceeds `most` characters is cut.
[[nodiscard]] inline std::string one_line(
    std::string_view text, std::size_t most = std::string_view::npos) {
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
