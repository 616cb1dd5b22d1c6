// SPDX-License-Identifier: Apache-2.0
//
// A communicator of NCCL as an object, made by zbpp or adopted from the caller: it is made without
// blocking, polled for errors, aborted with others when a run fails, and destroyed without a hang.
#pragma once

#include <zbpp/cuda/error.hpp>
#include <zbpp/error.hpp>
#include <zbpp/nccl/detail/calls.hpp>
#include <zbpp/nccl/error.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace zbpp::nccl {

/// Called repeatedly during a wait: sleeps for about the given time, or does something useful.
/// It ends the wait by throwing.
using pause_call = std::function<void(std::chrono::microseconds)>;

/// @return a pause that sleeps, and throws error (no_rendezvous) with this text after `limit`
[[nodiscard]] inline pause_call limited_pause(std::chrono::milliseconds limit, std::string text) {
  auto const end = std::chrono::steady_clock::now() + limit;
  return [end, reason = std::move(text)](std::chrono::microseconds time) {
    if (std::chrono::steady_clock::now() > end) throw error(errc::no_rendezvous, reason);
    std::this_thread::sleep_for(time);
  };
}

/// Says how a communicator is made.
struct communicator_settings {
  std::string name = {};  ///< for tools and NCCL's log, such as `zbpp:0>1`
  /// Thread blocks that a message may use, each of which holds a multiprocessor while it waits.
  int most_ctas = 1;
};

/// Holds one rank's communicator. One thread at a time may use it, and none while it is aborted.
class communicator {
 public:
  /// Begins to make one for the current device; inside a group when one thread makes several.
  /// Wait for `is_ready` before you use it. NCCL keeps the object's address until then.
  /// @throws error (bad_argument) unless the rank is one of `ranks` and most_ctas is above 0;
  ///         cuda_error; nccl_error; std::system_error when the system has no more threads
  communicator(ncclUniqueId const& id, int ranks, int rank, communicator_settings settings)
      : name_(std::move(settings.name)), ranks_(ranks), rank_(rank), is_own_(true) {
    zbpp::detail::require(
        rank >= 0 && rank < ranks && settings.most_ctas > 0,
        "a communicator needs a rank from 0 to ranks - 1 and most_ctas above 0; give it both");
    cuda::check(cudaGetDevice(&device_));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // so that a wait for a peer that never comes can end
    // Clusters do not fit where a partition of the device has few multiprocessors.
    config.cgaClusterSize = 0;
    config.minCTAs = 1;
    config.maxCTAs = settings.most_ctas;
    config.splitShare = 0;  // communicators that share resources share a queue and end together
#if NCCL_VERSION_CODE >= 22700
    config.commName = name_.c_str();
#endif
    detail::check_started(ncclCommInitRankConfig(&native_, ranks, id, rank, &config));
  }
  /// Adopts the caller's, which outlives this object and is neither finalized nor destroyed by it;
  /// when a run fails it is revoked, so that nothing hangs on the device. Make it with
  /// `blocking = 0`: others block the host until a peer comes, however long that takes.
  /// @throws error (bad_argument) when NCCL is older than 2.28.7 and cannot revoke; nccl_error;
  ///         std::system_error when the system has no more threads
  explicit communicator(ncclComm_t adopted) : native_(adopted) {
#if NCCL_VERSION_CODE >= 22807
    detail::check_library(22807);
    check(ncclCommCount(adopted, &ranks_));
    check(ncclCommUserRank(adopted, &rank_));
    check(ncclCommCuDevice(adopted, &device_));
#else
    throw error(errc::bad_argument) + "adopting a communicator needs NCCL 2.28.7 or newer, which "
                                      "can revoke it when a run fails; let zbpp make its own";
#endif
  }
  communicator(communicator const&) = delete;
  communicator& operator=(communicator const&) = delete;
  /// Finalizes and destroys an owned communicator; aborts it when that takes longer than two
  /// seconds or when it has failed. Never throws, never hangs.
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

  /// @return its state: ncclSuccess, ncclInProgress, or an error
  [[nodiscard]] ncclResult_t async_error() const noexcept {
    auto state = ncclSuccess;
    auto const asked = ncclCommGetAsyncError(native_, &state);
    return asked == ncclSuccess ? state : asked;
  }
  /// @return whether the last call on it is done, so that its stream may be used
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

  /// Aborts some communicators, each from a thread of its own, and waits until all are aborted. The
  /// caller's are revoked. Never throws, and allocates nothing.
  static void abort(std::span<communicator* const> all) noexcept {
    abort_if(all, [](communicator const&) { return true; });
  }

  /// Finalizes and destroys those of some communicators that are owned, together, since ranks in
  /// one process may wait for each other. Aborts those that are not done within the limit.
  static void close(std::span<communicator* const> all, std::chrono::milliseconds limit) noexcept {
    bool is_intact = true;
    for (auto* one : all)
      is_intact = is_intact && (!one->must_destroy() || one->async_error() == ncclSuccess);
    if (is_intact) {
      ncclGroupStart();
      for (auto* one : all)
        if (one->must_destroy()) ncclCommFinalize(one->native_);
      ncclGroupEnd();
      auto const end = std::chrono::steady_clock::now() + limit;
      for (auto* one : all) {
        while (one->must_destroy() && one->async_error() == ncclInProgress &&
               std::chrono::steady_clock::now() < end)
          std::this_thread::sleep_for(std::chrono::microseconds(50));
        if (one->must_destroy() && one->async_error() == ncclSuccess)
          ncclCommDestroy(std::exchange(one->native_, {}));
      }
    }
    abort_if(all, [](communicator const& one) { return one.is_own_; });
  }

 private:
  [[nodiscard]] bool must_destroy() const noexcept { return is_own_ && native_ != nullptr; }

  // An abort waits for the launch under way on its communicator, and that may stand after the
  // kernel of another one, which runs until its own abort begins. So all begin before one is waited
  // for, and a group would not do: each call in it waits.
  template <class Chosen>
  static void abort_if(std::span<communicator* const> all, Chosen const& is_chosen) noexcept {
    for (auto* one : all)
      if (one->native_ != nullptr && is_chosen(*one)) one->abort_.start();
    for (auto* one : all) {
      if (!one->abort_.is_started()) continue;
      one->abort_.finish();
      // Only now: NCCL writes the handle once more when the communicator was still being made.
      one->native_ = nullptr;
    }
  }

  void abort_here() noexcept {
    cudaSetDevice(device_);  // or NCCL would make a context on the first device
    if (is_own_) ncclCommAbort(native_);
    if (!is_own_) detail::revoke(native_);  // adopted only where the library can
  }

  std::string name_;  // NCCL may keep its address
  ncclComm_t native_ = nullptr;
  int ranks_ = 0;
  int rank_ = 0;
  int device_ = 0;
  bool is_own_ = false;
  detail::abort_thread abort_{[this] { abort_here(); }};  // last: it uses the others
};

}  // namespace zbpp::nccl
