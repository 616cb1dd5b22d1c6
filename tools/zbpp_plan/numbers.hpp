// SPDX-License-Identifier: Apache-2.0
//
// Values of options. Strict: all of a text is a number of the right kind and range, or it is
// refused in one line with the option's name and what to give instead.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/costs.hpp>

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace planning {

/// Refuses bad input.
/// @throws zbpp::error (bad_argument) always
[[noreturn]] inline void refuse(std::string const& message) {
  throw zbpp::error(zbpp::errc::bad_argument, message);
}

/// Refuses the value of an option.
/// @throws zbpp::error (bad_argument) always
[[noreturn]] inline void refuse(
    std::string_view option, std::string_view found, std::string const& expected) {
  refuse(std::string(option) + ": found '" + zbpp::one_line(found, 60) + "'; expected " + expected);
}

/// @return whether all of a text is a number, which is then in `value`
template <class Number>
[[nodiscard]] bool is_number(std::string_view text, Number& value) noexcept {
  auto const end = text.data() + text.size();
  auto const [stop, fault] = std::from_chars(text.data(), end, value);
  return fault == std::errc{} && stop == end;
}

/// @return the whole number from `low` to `high` that a text is
/// @throws zbpp::error (bad_argument)
template <std::integral Number>
[[nodiscard]] Number whole(
    std::string_view option, std::string_view text, Number low, Number high) {
  Number value{};
  if (is_number(text, value) && value >= low && value <= high) return value;
  refuse(
      option, text, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
}

/// @return the decimal from `low` to `high` that a text is
/// @throws zbpp::error (bad_argument)
[[nodiscard]] inline double decimal(
    std::string_view option, std::string_view text, double high, std::string const& expected) {
  double value = 0;
  if (is_number(text, value) && value >= 0 && value <= high) return value;
  refuse(option, text, expected);
}

/// @return the time in milliseconds that a text is
/// @throws zbpp::error (bad_argument)
[[nodiscard]] inline zbpp::ticks time(std::string_view option, std::string_view text) {
  constexpr double most = 1e12;
  return zbpp::from_milliseconds(decimal(option, text, most, "a time from 0 to 10^12 ms"));
}

/// @return the size that a text is
/// @throws zbpp::error (bad_argument)
[[nodiscard]] inline zbpp::bytes size(std::string_view option, std::string_view text) {
  return whole<zbpp::bytes>(option, text, 0, std::numeric_limits<zbpp::bytes>::max());
}

/// Splits a text at a character; an empty text is one empty part.
[[nodiscard]] inline std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    auto const end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// @return the values of a list, one for each of `count`; a single one stands for all, and `5x32`
///         for 32 of 5
/// @param of  in messages, what there are `count` of
/// @throws zbpp::error (bad_argument)
template <class Value>
[[nodiscard]] std::vector<Value> list(
    std::string_view option,
    std::string_view text,
    int count,
    Value (*read)(std::string_view, std::string_view),
    std::string const& of = "stages") {
  std::vector<Value> values;
  auto const all = static_cast<std::size_t>(count);
  for (auto part : split(text, ',')) {
    auto const times = part.find('x');
    auto const value = read(option, part.substr(0, times));
    auto const repeats =
        times == std::string_view::npos ? 1 : whole(option, part.substr(times + 1), 1, count);
    values.insert(values.end(), static_cast<std::size_t>(repeats), value);
  }
  if (values.size() == 1) values.resize(all, values.front());
  if (values.size() != all)
    refuse(
        std::string(option) + ": found " + std::to_string(values.size()) +
        " values; expected 1 for all " + of + ", or " + std::to_string(count) + ", one for each");
  return values;
}

/// Reads `LO:HI:N`.
/// @return N limits from LO to HI, in equal steps
/// @throws zbpp::error (bad_argument)
[[nodiscard]] inline std::vector<zbpp::bytes> limits(
    std::string_view option, std::string_view text) {
  auto const parts = split(text, ':');
  if (parts.size() != 3) refuse(option, text, "LO:HI:N, two sizes and how many limits");
  auto const low = size(option, parts[0]);
  auto const high = size(option, parts[1]);
  constexpr int most = 1000;
  auto const count = whole(option, parts[2], 1, most);
  if (high < low) refuse(option, text, "LO up to HI");
  constexpr zbpp::bytes greatest = zbpp::bytes{1} << 60;
  if (high > greatest) refuse(option, text, "sizes up to 2^60; take a coarser unit");
  if (count - 1 > high - low || (count == 1) != (high == low))
    refuse(option, text, "N limits that differ: from 2 to HI - LO + 1, or 1 where LO is HI");
  std::vector<zbpp::bytes> all{low};
  auto const steps = static_cast<zbpp::bytes>(count - 1);
  for (zbpp::bytes i = 1; i <= steps; ++i)
    all.push_back(low + (high - low) / steps * i + (high - low) % steps * i / steps);
  return all;
}

}  // namespace planning
