// SPDX-License-Identifier: Apache-2.0
//
// How the host of a rank waits in a step: never for long at a time, since what ends the step may
// come from the device, from NCCL or from another rank.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/nccl/detail/calls.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/device_progress.hpp>
#include <zbpp/runtime/failure.hpp>

#include <chrono>
#include <thread>

namespace zbpp::nccl::detail {

/// Waits in the steps of one rank. Used by the thread that runs steps.
class host_wait {
 public:
  /// What it refers to outlives it.
  host_wait(asio::step_supervisor& supervisor, device_progress& progress) noexcept
      : supervisor_(supervisor), progress_(progress) {}

  /// Gets ready for the steps of a run.
  void start_run(communicator_set& communicators, step_status const& status) noexcept {
    communicators_ = &communicators;
    status_ = &status;
  }
  /// Runs socket handlers and publishes how far the device is until `done()` holds or the step has
  /// failed. @return whether the step goes on
  /// @throws cuda_error; nccl_error
  template <class Done>
  bool until(Done const& done) {
    auto const pause = [](std::chrono::microseconds time) { std::this_thread::sleep_for(time); };
    poll(
        [&] {
          if (supervisor_.look() || status_->has_failed()) return true;
          progress_.publish(supervisor_.channel().board());
          if (done()) return true;
          communicators_->check_errors();
          return false;
        },
        pause,
        std::chrono::microseconds(50));
    return !status_->has_failed();
  }
  /// Waits until no pass that was issued waits for a message any more: what is left takes the
  /// device only. @return whether the step goes on
  /// @throws cuda_error; nccl_error
  bool until_messages_are_here() {
    return until([this] { return !progress_.is_waiting(); });
  }
  /// Waits until rank 0 has decided which failure of the run was the first, but not longer than the
  /// deadline of the run. Only then may a rank give up messages: passes that run without them,
  /// there and where their results go, may fault, and none of that is the first failure.
  void until_stopped() {
    auto const end = std::chrono::steady_clock::now() + supervisor_.channel().settings().deadline;
    poll(
        [&] { return supervisor_.look() || std::chrono::steady_clock::now() > end; },
        [](std::chrono::microseconds time) { std::this_thread::sleep_for(time); });
  }

 private:
  asio::step_supervisor& supervisor_;
  device_progress& progress_;
  communicator_set* communicators_ = nullptr;
  step_status const* status_ = nullptr;
};

}  // namespace zbpp::nccl::detail
