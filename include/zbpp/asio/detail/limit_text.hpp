// SPDX-License-Identifier: Apache-2.0
//
// Time limits in words, with the setting that decides them.
#pragma once

#include <string>

namespace zbpp::asio::detail {

/// @param setting  of `rendezvous_settings`
[[nodiscard]] inline std::string set_by(char const* setting) {
  return std::string("; rendezvous_settings::") + setting + " sets this limit";
}

}  // namespace zbpp::asio::detail
