// SPDX-License-Identifier: Apache-2.0
//
// How names, numbers and times become text: the same in messages, drawings and files.
#pragma once

#include <zbpp/model/costs.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zbpp {

/// The most bytes of a text that zbpp reads; a plan of a million passes takes about 80 MiB.
inline constexpr std::size_t largest_text = std::size_t{1} << 28;

/// Says in which unit times are written.
enum class time_unit : std::uint8_t { nanoseconds, microseconds, milliseconds, seconds };

[[nodiscard]] constexpr std::string_view to_string(time_unit unit) noexcept {
  switch (unit) {
    case time_unit::nanoseconds: return "ns";
    case time_unit::microseconds: return "us";
    case time_unit::milliseconds: return "ms";
    case time_unit::seconds: return "s";
  }
  return "?";
}

[[nodiscard]] constexpr ticks ticks_in(time_unit unit) noexcept {
  ticks size = 1;
  for (int i = 0; i < static_cast<int>(unit); ++i) size *= 1000;
  return size;
}

namespace detail {

/// Writes a fraction exactly and without needless zeros; `parts` is a power of ten.
[[nodiscard]] std::string decimal(std::int64_t value, std::int64_t parts);

/// Writes a text as a string of JSON, with its quotes.
/// @return nothing where the text is not UTF-8
[[nodiscard]] std::string json_text(std::string_view text);

}  // namespace detail

/// Writes a time of at least 0 without its unit: exact, without needless zeros.
[[nodiscard]] std::string number_text(ticks time, time_unit unit);

/// @return the shortest decimal that reads back to the same double
[[nodiscard]] std::string number_text(double value);
/// Writes a number with so many decimals.
[[nodiscard]] std::string fixed_text(double value, int decimals);
/// Writes a time, which may be negative, without its unit and with so many decimals.
[[nodiscard]] std::string fixed_text(ticks time, time_unit unit, int decimals);

/// Writes a time of at least 0 with its unit, exactly, as in `12.5 ms`.
[[nodiscard]] std::string time_text(ticks time, time_unit unit);

/// Writes how long something took, rounded to tenths, as in `61.2 s`; a negative time as 0.
[[nodiscard]] std::string seconds_text(std::chrono::milliseconds time);

/// Makes a text fit for one line of any format: control characters become spaces, bytes that are
/// not UTF-8 become question marks, and what exceeds `most` characters is cut.
[[nodiscard]] std::string one_line(
    std::string_view text, std::size_t most = std::string_view::npos);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/text.ipp>
#endif
