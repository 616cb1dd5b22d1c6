// SPDX-License-Identifier: Apache-2.0
//
// Times that follow from the deadlines of a run.
#pragma once

#include <zbpp/asio/settings.hpp>

#include <algorithm>
#include <chrono>

namespace zbpp::asio::detail {

/// @return how often a rank shows that it lives: a rank that stops is given up `deadline` after it
///         did so last, so this is how much sooner than `deadline` that may be
[[nodiscard]] inline std::chrono::milliseconds heartbeat_of(rendezvous_settings const& s) {
  return std::max(std::min(s.deadline, s.stall_deadline) / 10, std::chrono::milliseconds(1));
}

/// @return how long ranks may take to be told that the run has failed, and then to end
[[nodiscard]] inline std::chrono::milliseconds stop_limit_of(rendezvous_settings const& s) {
  return std::min(s.deadline / 4, std::chrono::milliseconds(3000));
}

/// @return how long a rank that has ended waits for others to read or to notice that
[[nodiscard]] inline std::chrono::milliseconds linger_of(rendezvous_settings const& s) {
  return std::min(s.deadline / 4, std::chrono::milliseconds(250));
}

}  // namespace zbpp::asio::detail
