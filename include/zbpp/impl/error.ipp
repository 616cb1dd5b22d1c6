// SPDX-License-Identifier: Apache-2.0
//
// What error.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

namespace zbpp {

ZBPP_INLINE std::string to_string(location const& at) {
  std::string text;
  auto add = [&text](std::string_view name, std::int64_t value) {
    if (value < 0) return;
    if (!text.empty()) text += ", ";
    text += detail::joined(name, ' ', value);
  };
  add("rank", at.rank);
  add("position", at.position);
  add("stage", at.stage);
  add("microbatch", at.microbatch);
  return text;
}

namespace detail {

/// @return what stands in front of a message about a place
[[nodiscard]] ZBPP_INLINE std::string prefix_of(location const& at) {
  return at == location{} ? std::string() : to_string(at) + ": ";
}

// The core knows LibTorch's exceptions by their text alone: `c10::Error::what()` is
// `what_without_backtrace()` and then a backtrace, which begins so in all versions.
ZBPP_INLINE std::string text_of(std::exception const& thrown) {
  std::string text = thrown.what();
  if (auto const backtrace = text.find("\nException raised from "); backtrace != std::string::npos)
    text.resize(backtrace);
  return text;
}

ZBPP_INLINE std::string text_of(std::exception_ptr const& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (std::bad_alloc const&) {
    return "out of memory";
  } catch (std::exception const& known) {
    return text_of(known);
  } catch (...) {
    return "failed for an unknown reason";
  }
}

ZBPP_INLINE void rethrow_of(std::string const& callback, location const& at) {
  auto const text = callback + " threw: ";
  try {
    throw;
  } catch (error& thrown) {
    if (thrown.location() == location{})
      thrown.std::runtime_error::operator=(std::runtime_error(text + thrown.what()));
    thrown.locate(at);
    throw;
  } catch (...) {
    std::throw_with_nested(error(errc::pass_failed, text + text_of(std::current_exception()), at));
  }
}

}  // namespace detail

ZBPP_INLINE error::error(errc code, zbpp::location at)
    : std::runtime_error(detail::prefix_of(at)),
      code_(code),
      at_(at),
      place_length_(std::string_view(what()).size()) {}

ZBPP_INLINE void error::append(std::string_view text) {
  std::runtime_error::operator=(std::runtime_error(std::string(what()).append(text)));
}

ZBPP_INLINE void error::locate(zbpp::location const& at) {
  if (at_ != zbpp::location{}) return;
  auto const place = detail::prefix_of(at);
  std::runtime_error::operator=(std::runtime_error(place + what()));
  at_ = at;
  place_length_ = place.size();
}

}  // namespace zbpp
