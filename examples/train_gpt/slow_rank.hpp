// SPDX-License-Identifier: Apache-2.0
//
// A rank that is slower than planned, on purpose: to see how a run deals with it.
#pragma once

#include "settings.hpp"
#include <zbpp/runtime/threads.hpp>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>

namespace gpt {

/// By which passes on this thread take longer.
inline thread_local double pass_factor = 1.0;

/// Makes a pass take longer on the thread of a slow rank: the thread sleeps at its end.
class slowed_pass {
 public:
  slowed_pass() = default;
  slowed_pass(slowed_pass const&) = delete;
  slowed_pass& operator=(slowed_pass const&) = delete;
  ~slowed_pass() {
    if (pass_factor <= 1.0) return;
    auto const now = std::chrono::steady_clock::now();
    std::this_thread::sleep_until(
        start_ +
        std::chrono::duration_cast<std::chrono::nanoseconds>(pass_factor * (now - start_)));
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// @return threads, one for each rank, of which one is slow
[[nodiscard]] inline zbpp::threads threads_with(slow_rank const& slow) {
  zbpp::threads backend;
  if (slow.rank >= 0)
    backend.on_thread_start = [slow](std::span<int const> ranks) {
      bool const is_slow = std::ranges::find(ranks, slow.rank) != ranks.end();
      pass_factor = is_slow ? slow.factor : 1.0;
    };
  return backend;
}

}  // namespace gpt
