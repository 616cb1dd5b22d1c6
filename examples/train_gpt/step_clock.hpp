// SPDX-License-Identifier: Apache-2.0
//
// The times of the steps of a run.
#pragma once

#include <chrono>
#include <utility>

namespace gpt {

/// Measures how long steps take that follow one another.
class step_clock {
 public:
  /// Begins a step that follows no other.
  void start() { last_ = std::chrono::steady_clock::now(); }
  /// Ends a step and begins the next.
  /// @return the milliseconds of the one that ended
  [[nodiscard]] double lap() {
    auto const now = std::chrono::steady_clock::now();
    std::chrono::duration<double, std::milli> const took = now - std::exchange(last_, now);
    return took.count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace gpt
