// SPDX-License-Identifier: Apache-2.0
//
// Aborts on a thread that was made beforehand, so that nothing can fail when the time comes. The
// launching thread may hang in a call that only the abort ends, the I/O thread, which learns of
// failures, must not block, and the abort of one communicator may wait for that of another.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

namespace zbpp::nccl::detail {

/// Runs an action at most once, when it is started.
class abort_thread {
 public:
  /// @param action  must not throw
  /// @throws std::system_error when the system has no more threads
  explicit abort_thread(std::function<void()> action)
      : thread_([this, act = std::move(action)] {
          state_.wait(state::waiting, std::memory_order_acquire);
          if (state_.load(std::memory_order_acquire) == state::started) act();
        }) {}
  abort_thread(abort_thread const&) = delete;
  abort_thread& operator=(abort_thread const&) = delete;
  ~abort_thread() { end_with(state::ended); }

  /// Starts the action, unless it was started. Any thread may call this; it does not block.
  void start() noexcept {
    auto expected = state::waiting;
    state_.compare_exchange_strong(expected, state::started, std::memory_order_release);
    state_.notify_one();
  }
  /// @return whether the action was started
  [[nodiscard]] bool is_started() const noexcept {
    return state_.load(std::memory_order_acquire) == state::started;
  }
  /// Starts the action, unless it was started, and blocks until it is done; one thread at a time
  /// may call this.
  void finish() { end_with(state::started); }

 private:
  enum class state : std::uint8_t { waiting, started, ended };

  void end_with(state what) {
    if (!thread_.joinable()) return;
    auto expected = state::waiting;
    state_.compare_exchange_strong(expected, what, std::memory_order_release);
    state_.notify_one();
    thread_.join();
  }

  std::atomic<state> state_{state::waiting};
  std::thread thread_;  // last: it reads the state
};

}  // namespace zbpp::nccl::detail
