// SPDX-License-Identifier: Apache-2.0
//
// What an act is refused with, as text to compare: the message says what is wrong and what would be
// right, so tests pin it down to the letter.
#pragma once

#include <zbpp/error.hpp>

#include <string>

namespace zbpp::test {

/// Runs `act` and gives the message of the `error` that it throws. Anything but an error of `code`
/// gives a text in angle brackets, which no message is.
template <class Act>
[[nodiscard]] std::string refusal(errc code, Act act) {
  try {
    act();
  } catch (error const& refused) {
    if (refused.code() == code) return refused.what();
    return "<" + std::string(to_string(refused.code())) + "> " + refused.what();
  }
  return "<nothing was refused>";
}

/// As above, for `errc::bad_argument`.
template <class Act>
[[nodiscard]] std::string refusal(Act act) {
  return refusal(errc::bad_argument, act);
}

}  // namespace zbpp::test
