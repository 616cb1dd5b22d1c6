// SPDX-License-Identifier: Apache-2.0
//
// What the error says that a failed pass becomes.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/rethrow.hpp>

#include <exception>
#include <string>

namespace zbpp::detail {

/// @return what the failure of a pass is called, in the words that other processes read
[[nodiscard]] ZBPP_INLINE error wrap(failure const& failed, std::string const& text) {
  bool const is_instruction = failed.location.position >= 0;
  auto const running = is_instruction ? "in " + to_string(failed.instruction) + ": " : "";
  return error(errc::pass_failed, running + text, failed.location);
}

ZBPP_INLINE void rethrow_located(failure const& failed) {
  try {
    std::rethrow_exception(failed.exception);
  } catch (error& e) {
    e.locate(failed.location);
    throw;
  } catch (...) {
    std::throw_with_nested(wrap(failed, text_of(failed.exception)));
  }
}

ZBPP_INLINE void take_place_of_error(failure& failed) noexcept {
  try {
    std::rethrow_exception(failed.exception);
  } catch (error const& e) {
    if (e.location().rank < 0 || e.location().position >= 0) return;
    failed.location = e.location();
    failed.instruction = {};
  } catch (...) {  // it has no place
  }
}

}  // namespace zbpp::detail
