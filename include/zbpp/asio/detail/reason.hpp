// SPDX-License-Identifier: Apache-2.0
//
// Why something failed, in words for people: the system's own, with what to do where that is known,
// and without the places in Boost's source that its exceptions name or a backtrace.
#pragma once

#include <zbpp/error.hpp>

#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>

#include <exception>
#include <new>
#include <string>
#include <system_error>

namespace zbpp::asio::detail {

/// @return whether a call failed because this process, or its machine, has too many files open
[[nodiscard]] inline bool lacks_descriptors(boost::system::error_code const& code) {
  using namespace boost::system::errc;
  return code == too_many_files_open || code == too_many_files_open_in_system;
}

/// @return why a call of the system failed
[[nodiscard]] inline std::string reason_of(boost::system::error_code const& code) {
  auto const cure = lacks_descriptors(code) ? "; allow more file descriptors with ulimit -n" : "";
  return code.message() + cure;
}

/// @return what an exception tells
[[nodiscard]] inline std::string reason_of(std::exception const& failed) {
  if (auto const* const of_boost = dynamic_cast<boost::system::system_error const*>(&failed))
    return reason_of(of_boost->code());
  if (auto const* const of_system = dynamic_cast<std::system_error const*>(&failed))
    return reason_of(boost::system::error_code(of_system->code()));
  if (dynamic_cast<std::bad_alloc const*>(&failed) != nullptr) return "out of memory";
  return zbpp::detail::text_of(failed);
}

}  // namespace zbpp::asio::detail
