// SPDX-License-Identifier: Apache-2.0
//
// What a program told has to have arrived: a full disk is no success.
#pragma once

#include <zbpp/error.hpp>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

namespace gpt {

/// Writes out what was printed; the last call before the program ends.
/// @throws zbpp::error (io_failed) unless all of it, from the start of the program on, was taken
inline void finish_output() {
  bool const is_flushed = std::fflush(stdout) == 0;
  auto const reason = is_flushed ? std::string() : ": " + std::generic_category().message(errno);
  if (!is_flushed || std::ferror(stdout) != 0)
    throw zbpp::error(
        zbpp::errc::io_failed, "standard output: not all of it could be written" + reason);
}

}  // namespace gpt
