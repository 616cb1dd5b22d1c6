// SPDX-License-Identifier: Apache-2.0
//
// Single values of JSON files, each checked for kind and range: whole numbers, times, sizes, words.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/json/detail/document.hpp>
#include <zbpp/json/detail/number.hpp>
#include <zbpp/model/costs.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace zbpp::json::detail {

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
  from.refuse("a whole number from " + std::to_string(low) + " to " + std::to_string(high));
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
      "a time from 0 to " + std::to_string(most / ticks_in(unit)) + " " +
      std::string(to_string(unit)));
}

/// @return a number of at least 0, multiplied by 10^`power`; `what` says in messages what it is
[[nodiscard]] inline double real(value const& from, int power, std::string const& what) {
  if (from.is(value_kind::number))
    if (auto const number = scaled_real(from.text(), power)) return *number;
  from.refuse(what + ", a number of at least 0 that a double can hold");
}

/// @return whether a value is the string `word`
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
