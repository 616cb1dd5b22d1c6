// SPDX-License-Identifier: Apache-2.0
//
// How calls of NCCL are made: in groups, without blocking, on a library that is new enough; and how
// communicators are aborted: on a thread that was made beforehand, so that nothing can fail when
// the time comes.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/nccl/error.hpp>

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <source_location>
#include <thread>
#include <utility>

#if NCCL_VERSION_CODE >= 22807
// Weak, so that programs start with a library that is older than the headers.
extern "C" [[gnu::weak]] ncclResult_t ncclCommRevoke(ncclComm_t communicator, int flags);
#endif

namespace zbpp::nccl::detail {

/// @return whether the library can revoke communicators, as NCCL can from 2.28.7 on
[[nodiscard]] inline bool can_revoke() noexcept {
#if NCCL_VERSION_CODE >= 22807
  return ncclCommRevoke != nullptr;
#else
  return false;
#endif
}

/// Revokes a communicator; the library can.
inline ncclResult_t revoke([[maybe_unused]] ncclComm_t communicator) noexcept {
#if NCCL_VERSION_CODE >= 22807
  return ncclCommRevoke(communicator, NCCL_REVOKE_DEFAULT);
#else
  return ncclInvalidUsage;
#endif
}

/// Accepts a call that succeeded or is still in progress, as calls on communicators that do not
/// block may be.
/// @throws nccl_error
inline void check_started(
    ncclResult_t status, std::source_location at = std::source_location::current()) {
  if (status != ncclSuccess && status != ncclInProgress) raise(status, at);
}

/// Refuses a library that is older than what the headers promise to work with, or than `least`.
/// @throws error (bad_argument); nccl_error
inline void check_library(int least = 22200) {
  int version = 0;
  check(ncclGetVersion(&version));
  if (version < least)
    throw error(errc::bad_argument) + "the NCCL that this process has loaded is version " +
        version + "; let it find version " + least + " or newer first";
}

/// Groups calls: those made during its lifetime start together when `end` is called.
class [[nodiscard]] group {
 public:
  /// @throws nccl_error
  group() { check(ncclGroupStart()); }
  group(group const&) = delete;
  group& operator=(group const&) = delete;
  /// Closes the group when an exception leaves its scope.
  ~group() {
    if (is_open_) ncclGroupEnd();
  }
  /// @throws nccl_error
  void end() {
    is_open_ = false;
    check_started(ncclGroupEnd());
  }

 private:
  bool is_open_ = true;
};

/// Polls until `done()` holds: at first without pauses, since most calls are done soon, then with
/// pauses of 10 us to `longest`.
template <class Done, class Pause>
void poll(
    Done const& done,
    Pause const& pause,
    std::chrono::microseconds longest = std::chrono::microseconds(1000)) {
  constexpr int polls_without_pause = 64;
  std::chrono::microseconds next{10};
  for (int polls = 0; !done(); ++polls) {
    if (polls < polls_without_pause) continue;
    pause(next);
    next = std::min(2 * next, longest);
  }
}

/// Runs an action at most once, when it is started, on a thread that was made beforehand. The
/// launching thread may hang in a call that only the abort ends, the I/O thread, which learns of
/// failures, must not block, and the abort of one communicator may wait for that of another.
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
  [[nodiscard]] bool is_started() const noexcept {
    return state_.load(std::memory_order_acquire) == state::started;
  }
  /// Starts the action, unless it was started, and blocks until it is done; one thread at a time
  /// may call this.
  void finish() { end_with(state::started); }

 private:
  enum class state : std::uint8_t { waiting, started, ended };

  void end_with(state next) {
    if (!thread_.joinable()) return;
    auto expected = state::waiting;
    state_.compare_exchange_strong(expected, next, std::memory_order_release);
    state_.notify_one();
    thread_.join();
  }

  std::atomic<state> state_{state::waiting};
  std::thread thread_;  // last: it reads the state
};

}  // namespace zbpp::nccl::detail
