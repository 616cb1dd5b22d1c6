// SPDX-License-Identifier: Apache-2.0
//
// Finds out how wide the terminal is and whether it wants colour. It asks the system, so it is kept
// apart from what draws.
#pragma once

#include <zbpp/io/ascii.hpp>

namespace zbpp {

/// @return options that suit standard output: its width and, unless the environment has `NO_COLOR`
///         or a dumb `TERM`, colour when it is a terminal; the defaults when it is not
[[nodiscard]] ascii_options terminal_options() noexcept;

[[nodiscard]] bool is_terminal() noexcept;

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/terminal.ipp>
#endif
