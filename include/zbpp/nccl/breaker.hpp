// SPDX-License-Identifier: Apache-2.0
//
// Aborts communicators from a thread of its own: the thread that issues may hang in a launch that
// only this can end, and the one that hears of a failure has sockets to look after.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

namespace zbpp::nccl {

/// Runs something once, when it is told to.
class breaker {
 public:
  /// @param action  must not throw
  /// @throws std::system_error when the system has no more threads
  explicit breaker(std::function<void()> action)
      : thread_([this, does = std::move(action)] {
          state_.wait(state::waiting, std::memory_order_acquire);
          if (state_.load(std::memory_order_acquire) == state::tripped) does();
        }) {}
  breaker(breaker const&) = delete;
  breaker& operator=(breaker const&) = delete;
  ~breaker() { leave_for(state::idle); }

  /// Begins it, unless it has begun. Any thread may call this; it does not block.
  void trip() noexcept {
    auto expected = state::waiting;
    state_.compare_exchange_strong(expected, state::tripped, std::memory_order_release);
    state_.notify_one();
  }
  /// Begins it, unless it has begun, and blocks until it is done; for the thread that made this.
  void finish() { leave_for(state::tripped); }

 private:
  enum class state : std::uint8_t { waiting, tripped, idle };

  void leave_for(state what) {
    if (!thread_.joinable()) return;
    auto expected = state::waiting;
    state_.compare_exchange_strong(expected, what, std::memory_order_release);
    state_.notify_one();
    thread_.join();
  }

  std::atomic<state> state_{state::waiting};
  std::thread thread_;  // last: it reads the state
};

}  // namespace zbpp::nccl
