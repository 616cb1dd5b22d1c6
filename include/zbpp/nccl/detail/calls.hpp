// SPDX-License-Identifier: Apache-2.0
//
// How calls of NCCL are made: in groups, without blocking, and on a library that is new enough.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/nccl/error.hpp>

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <source_location>
#include <string>

namespace zbpp::nccl::detail {

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
    throw error(
        errc::bad_argument,
        "the NCCL that this process has loaded is version " + std::to_string(version) +
            "; let it find version " + std::to_string(least) + " or newer first");
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

}  // namespace zbpp::nccl::detail
