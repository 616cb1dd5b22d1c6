// SPDX-License-Identifier: Apache-2.0
//
// A communicator of NCCL as an object: made without blocking, watched for errors, aborted together
// with others where something went wrong, and given back without a hang. Or the caller's own.
#pragma once

#include <zbpp/nccl/error.hpp>

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace zbpp::nccl {

/// Is called again and again while something is waited for: sleeps for about the time it is given,
/// or does something useful. It ends the wait by throwing.
using pause_call = std::function<void(std::chrono::microseconds)>;

namespace detail {

/// Groups calls: what is called while it lives happens together, when `end` is called.
class [[nodiscard]] group {
 public:
  /// @throws nccl_error
  group() { check(ncclGroupStart()); }
  group(group const&) = delete;
  group& operator=(group const&) = delete;
  /// Leaves the group where something was thrown inside of it.
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

/// Looks until `done()` holds: some times at once, since most is done soon, then with pauses of
/// 10 us to 1 ms.
template <class Done>
void poll(Done const& done, pause_call const& pause) {
  constexpr int looks_at_once = 64;
  constexpr std::chrono::microseconds longest{1000};
  std::chrono::microseconds next{10};
  for (int looks = 0; !done(); ++looks) {
    if (looks < looks_at_once) continue;
    pause(next);
    next = std::min(2 * next, longest);
  }
}

}  // namespace detail

/// @return a pause that sleeps, and once it was called for longer than `limit` throws
///         error (no_rendezvous) with this text
[[nodiscard]] inline pause_call limited_pause(std::chrono::milliseconds limit, std::string text) {
  auto const end = std::chrono::steady_clock::now() + limit;
  return [end, what = std::move(text)](std::chrono::microseconds time) {
    if (std::chrono::steady_clock::now() > end) throw error(errc::no_rendezvous, what);
    std::this_thread::sleep_for(time);
  };
}

/// Says how a communicator is made.
struct communicator_settings {
  std::string name = {};  ///< for tools and NCCL's log, such as `zbpp:0>1`
  /// Thread blocks that a message may use, each of which holds a multiprocessor while it waits.
  int most_ctas = 1;
};

/// Is one end of a communicator. One thread at a time uses it, and none while it is aborted.
class communicator {
 public:
  /// Begins to make one for the current device; inside a group when several are made by one thread.
  /// Wait for `is_ready` before anything else. NCCL keeps the object's address until then.
  /// @throws error (bad_argument) unless the rank is one of `ranks` and most_ctas is above 0;
  ///         nccl_error
  communicator(ncclUniqueId const& id, int ranks, int rank, communicator_settings settings)
      : name_(std::move(settings.name)), ranks_(ranks), rank_(rank), is_own_(true) {
    zbpp::detail::require(
        rank >= 0 && rank < ranks && settings.most_ctas > 0,
        "a communicator needs a rank from 0 to ranks - 1, and most_ctas above 0");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // or a peer that never comes could not be given up
    // Clusters do not fit where a partition of the device has few multiprocessors.
    config.cgaClusterSize = 0;
    config.minCTAs = 1;
    config.maxCTAs = settings.most_ctas;
    config.splitShare = 0;  // what is shared is one queue, and ends together
#if NCCL_VERSION_CODE >= 22700
    config.commName = name_.c_str();
#endif
    detail::check_started(ncclCommInitRankConfig(&native_, ranks, id, rank, &config));
  }
  /// Uses the caller's, which outlives this object and is neither finalized nor destroyed by it;
  /// where a run fails it is revoked, so that nothing hangs on the device. It is one made with
  /// `blocking = 0`: others block the host until a peer comes, however long that takes.
  /// @throws error (bad_argument) where NCCL is older than 2.28.7 and cannot do that; nccl_error
  explicit communicator(ncclComm_t theirs) : native_(theirs) {
#if NCCL_VERSION_CODE >= 22807
    detail::check_library(22807);
    check(ncclCommCount(theirs, &ranks_));
    check(ncclCommUserRank(theirs, &rank_));
#else
    throw error(
        errc::bad_argument,
        "adopting a communicator takes NCCL 2.28.7, which can revoke it when a run fails; let zbpp "
        "make its own");
#endif
  }
  communicator(communicator const&) = delete;
  communicator& operator=(communicator const&) = delete;
  /// Finalizes and destroys what is owned, or aborts it when that takes longer than two seconds or
  /// something has failed. Never throws, never hangs.
  ~communicator() {
    communicator* const self = this;
    close({&self, 1}, std::chrono::seconds(2));
  }

  /// @return NCCL's handle; null once it is aborted
  [[nodiscard]] ncclComm_t get() const noexcept { return native_; }
  [[nodiscard]] int ranks() const noexcept { return ranks_; }  ///< @return how many ranks it has
  [[nodiscard]] int rank() const noexcept { return rank_; }    ///< @return which of them this is
  [[nodiscard]] std::string const& name() const noexcept { return name_; }  ///< @return its name
  [[nodiscard]] bool is_own() const noexcept { return is_own_; }  ///< @return false: the caller's

  /// @return what it has come to: ncclSuccess, ncclInProgress, or an error
  [[nodiscard]] ncclResult_t async_error() const noexcept {
    auto state = ncclSuccess;
    auto const asked = ncclCommGetAsyncError(native_, &state);
    return asked == ncclSuccess ? state : asked;
  }
  /// @return whether what was called last is done, so that streams may be touched
  /// @throws nccl_error when it has failed
  [[nodiscard]] bool is_ready() const {
    auto const state = async_error();
    detail::check_started(state);
    return state == ncclSuccess;
  }
  /// Waits until it is ready.
  /// @throws nccl_error when it has failed; what `pause` throws
  void wait(pause_call const& pause) const {
    detail::poll([this] { return is_ready(); }, pause);
  }

  /// Ends all that runs on some communicators at once: one by one, the first could wait for a
  /// kernel that waits for the second. The caller's are revoked.
  static void abort(std::span<communicator* const> all) noexcept {
    abort_own(all);
#if NCCL_VERSION_CODE >= 22807
    for (auto* one : all)
      if (!one->is_own_ && one->native_ != nullptr)
        ncclCommRevoke(std::exchange(one->native_, nullptr), NCCL_REVOKE_DEFAULT);
#endif
  }

  /// Gives back what is owned of some communicators, together, since ends in one process may wait
  /// for each other. Aborts those that are not done within the limit.
  static void close(std::span<communicator* const> all, std::chrono::milliseconds limit) noexcept {
    bool is_sound = true;
    for (auto* one : all)
      is_sound = is_sound && (!one->is_left() || one->async_error() == ncclSuccess);
    if (is_sound) {
      ncclGroupStart();
      for (auto* one : all)
        if (one->is_left()) ncclCommFinalize(one->native_);
      ncclGroupEnd();
      auto const end = std::chrono::steady_clock::now() + limit;
      for (auto* one : all) {
        while (one->is_left() && one->async_error() == ncclInProgress &&
               std::chrono::steady_clock::now() < end)
          std::this_thread::sleep_for(std::chrono::microseconds(50));
        if (one->is_left() && one->async_error() == ncclSuccess)
          ncclCommDestroy(std::exchange(one->native_, {}));
      }
    }
    abort_own(all);
  }

 private:
  [[nodiscard]] bool is_left() const noexcept { return is_own_ && native_ != nullptr; }

  static void abort_own(std::span<communicator* const> all) noexcept {
    ncclGroupStart();
    for (auto* one : all)
      if (one->is_left()) ncclCommAbort(one->native_);
    ncclGroupEnd();
    // Not before: NCCL writes the handle once more where it was still being made.
    for (auto* one : all)
      if (one->is_own_) one->native_ = nullptr;
  }

  std::string name_;  // NCCL may keep its address
  ncclComm_t native_ = nullptr;
  int ranks_ = 0;
  int rank_ = 0;
  bool is_own_ = false;
};

}  // namespace zbpp::nccl
