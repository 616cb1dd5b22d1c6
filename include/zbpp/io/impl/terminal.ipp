// SPDX-License-Identifier: Apache-2.0
//
// How the system is asked about its terminal.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/io/terminal.hpp>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#if __has_include(<sys/ioctl.h>) && __has_include(<unistd.h>)
#include <sys/ioctl.h>
#include <unistd.h>
#endif

namespace zbpp {

ZBPP_INLINE bool is_terminal() noexcept {
#if __has_include(<unistd.h>)
  return ::isatty(STDOUT_FILENO) != 0;
#else
  return false;
#endif
}

ZBPP_INLINE ascii_options terminal_options() noexcept {
  ascii_options options;
#if __has_include(<sys/ioctl.h>) && __has_include(<unistd.h>)
  if (!is_terminal()) return options;
  ::winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    options.width = std::max<int>(size.ws_col, 20);
  auto const* no_colour = std::getenv("NO_COLOR");
  auto const* terminal = std::getenv("TERM");
  options.colour = (no_colour == nullptr || *no_colour == '\0') && terminal != nullptr &&
                   std::string_view(terminal) != "dumb";
#endif
  return options;
}

}  // namespace zbpp
