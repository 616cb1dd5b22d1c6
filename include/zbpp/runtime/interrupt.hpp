// SPDX-License-Identifier: Apache-2.0
//
// Stops a run after the step when its user presses Ctrl-C.
#pragma once

#include <csignal>

namespace zbpp {

/// Notices the first interrupt (SIGINT), so that a trainer can stop after the step, save and tell;
/// the second one ends the program as usual. A program that ignores interrupts, such as a job in
/// the background, goes on ignoring them.
class interrupt {
 public:
  /// Starts to listen, again where one was noticed before.
  static void listen() noexcept {
    raised_ = 0;
    if (std::signal(SIGINT, &interrupt::raise) == SIG_IGN) std::signal(SIGINT, SIG_IGN);
  }
  [[nodiscard]] static bool was_raised() noexcept { return raised_ != 0; }

 private:
  static void raise(int) {
    raised_ = 1;
    std::signal(SIGINT, SIG_DFL);
  }

  static inline std::sig_atomic_t volatile raised_ = 0;
};

}  // namespace zbpp
