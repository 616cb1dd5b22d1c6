// SPDX-License-Identifier: Apache-2.0
//
// Single values of JSON files, each checked for kind and range: whole numbers, times, sizes, words.
// They are read from their decimal digits: times become whole nanoseconds and sizes whole bytes by
// integer arithmetic alone, so every value survives writing and reading to the bit.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/detail/document.hpp>
#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace zbpp::json::detail {

/// @return the power of ten that turns a time in `unit` into nanoseconds
[[nodiscard]] constexpr int power_of(time_unit unit) noexcept { return 3 * static_cast<int>(unit); }

/// Splits the text of a JSON number into its mantissa and its power of ten.
struct decimal_text {
  std::string_view mantissa;  ///< digits, and at most one other character: the point
  std::int64_t exponent = 0;
  bool negative = false;  ///< and not zero

  explicit decimal_text(std::string_view text)
      : mantissa(text.substr(0, text.find_first_of("eE"))) {
    auto rest = text.substr(std::min(text.size(), mantissa.size() + 1));
    if (rest.starts_with('+')) rest.remove_prefix(1);
    if (mantissa.starts_with('-')) {
      mantissa.remove_prefix(1);
      negative = mantissa.find_first_of("123456789") != std::string_view::npos;
    }
    // Beyond that, no text is long enough to make a difference.
    constexpr auto most = std::int64_t{1} << 40;
    auto const parsed = std::from_chars(rest.data(), rest.data() + rest.size(), exponent);
    if (parsed.ec == std::errc::result_out_of_range) exponent = rest.front() == '-' ? -most : most;
    exponent = std::clamp(exponent, -most, most);
  }

  [[nodiscard]] static bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
};

/// Holds a decimal times a power of ten, as a whole number.
struct scaled_number {
  std::int64_t value = 0;  ///< rounded to the nearest, halves away from zero
  bool exact = true;       ///< whether nothing was rounded
};

/// Multiplies the decimal in `text` by 10^`power`.
/// @return nothing when it is negative or does not fit 63 bits
[[nodiscard]] inline std::optional<scaled_number> scaled(std::string_view text, int power) {
  decimal_text const number(text);
  if (number.negative) return std::nullopt;
  auto const is_digit = decimal_text::is_digit;
  auto const& mantissa = number.mantissa;
  auto const point = std::find_if_not(mantissa.begin(), mantissa.end(), is_digit);
  auto weight = (point - mantissa.begin()) + number.exponent + power;  // power of ten, and one
  scaled_number result;
  auto append = [&result](std::int64_t digit) {
    constexpr auto most = std::numeric_limits<std::int64_t>::max();
    if (result.value > (most - digit) / 10) return false;
    result.value = 10 * result.value + digit;
    return true;
  };
  bool round_up = false;
  for (char c : mantissa) {
    if (!is_digit(c)) continue;
    auto const digit = c - '0';
    if (weight > 0 && !append(digit)) return std::nullopt;
    if (weight == 0) round_up = digit >= 5;
    if (weight <= 0 && digit != 0) result.exact = false;
    --weight;
  }
  for (; weight > 0 && result.value != 0; --weight)
    if (!append(0)) return std::nullopt;
  if (!round_up) return result;
  if (result.value == std::numeric_limits<std::int64_t>::max()) return std::nullopt;
  ++result.value;
  return result;
}

/// Multiplies the decimal in `text` by 10^`power`, as the nearest double.
/// @return nothing when it is negative, or too large or too small for a double
[[nodiscard]] inline std::optional<double> scaled_real(std::string_view text, int power) {
  decimal_text const number(text);
  if (number.negative) return std::nullopt;
  std::string plain(number.mantissa);
  // nlohmann-json before 3.12 puts the point of the C locale that is set into the texts of numbers.
  for (auto& c : plain)
    if (!decimal_text::is_digit(c)) c = '.';
  plain += zbpp::detail::joined('e', number.exponent + power);
  double value = 0;
  auto const parsed = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return value;
}

/// @return the shortest decimal that reads back, multiplied by 10^`power`, to the same double
[[nodiscard]] inline std::string scaled_text(double value, int power) {
  if (value == 0 || power == 0) return number_text(value);
  std::array<char, 32> text{};
  auto const shortest =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::scientific);
  decimal_text const number({text.data(), shortest.ptr});
  return zbpp::detail::joined(number.mantissa, "e", number.exponent - power);
}

/// What is expected where a file asks for `offload` or `reload`.
inline constexpr auto const* not_offloaded =
    "nothing of it: moving activations to host memory is not planned yet";

/// @return a whole number from `low` to `high`, however its decimal is written
[[nodiscard]] inline std::int64_t whole(value const& from, std::int64_t low, std::int64_t high) {
  if (from.is(value_kind::number))
    if (auto const number = scaled(from.text(), 0);
        number && number->exact && number->value >= low && number->value <= high)
      return number->value;
  if (low == high) from.refuse(std::to_string(low));
  from.refuse(zbpp::detail::joined("a whole number from ", low, " to ", high));
}

/// @return a size in the file's unit, at least 0
[[nodiscard]] inline bytes size(value const& from) {
  return whole(from, 0, std::numeric_limits<bytes>::max());
}

/// @return a time in nanoseconds, rounded to the nearest
[[nodiscard]] inline ticks time(value const& from, time_unit unit) {
  if (from.is(value_kind::number))
    if (auto const number = scaled(from.text(), power_of(unit))) return number->value;
  constexpr auto most = std::numeric_limits<ticks>::max();
  from.refuse(
      zbpp::detail::joined("a time from 0 to ", most / ticks_in(unit), " ", to_string(unit)));
}

/// @return a number of at least 0, multiplied by 10^`power`; `expected` says in messages what it is
[[nodiscard]] inline double real(value const& from, int power, std::string const& expected) {
  if (from.is(value_kind::number))
    if (auto const number = scaled_real(from.text(), power)) return *number;
  from.refuse(expected + ", a number of at least 0 that a double can hold");
}

[[nodiscard]] inline bool is_word(value const& from, std::string_view word) {
  return from.is(value_kind::string) && from.text() == word;
}

/// Makes a value of the model from what was read at `from`, and gives what the model refuses the
/// form of a reader's message.
/// @throws error (bad_format)
template <class Make>
[[nodiscard]] auto as_format_error(value const& from, Make make) {
  try {
    return make();
  } catch (error const& refused) {
    if (refused.code() == errc::bad_format) throw;
    from.refuse_as(refused.what());
  }
}

}  // namespace zbpp::json::detail
