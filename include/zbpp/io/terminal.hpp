// SPDX-License-Identifier: Apache-2.0
//
// Finds out how wide the terminal is and whether it wants colour. It asks the system, so it is kept
// apart from what draws.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string_view>

#if __has_include(<sys/ioctl.h>) && __has_include(<unistd.h>)
#include <sys/ioctl.h>
#include <unistd.h>
#endif

#include <zbpp/io/ascii.hpp>

namespace zbpp {

/// @return options that suit standard output: its width and, unless the environment has `NO_COLOR`
///         or a dumb `TERM`, colour when it is a terminal; the defaults when it is not
[[nodiscard]] inline ascii_options terminal_options() noexcept {
  ascii_options options;
#if __has_include(<sys/ioctl.h>) && __has_include(<unistd.h>)
  if (::isatty(STDOUT_FILENO) == 0) return options;
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
