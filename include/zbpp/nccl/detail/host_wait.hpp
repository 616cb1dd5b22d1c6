// SPDX-License-Identifier: Apache-2.0
//
// How the host of a rank waits in a step: never for long at a time, since what ends the step may
// come from the device, from NCCL or from another rank.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/tcp_states.hpp>
#include <zbpp/asio/progress.hpp>
#include <zbpp/asio/step_supervisor.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/nccl/detail/calls.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/device_progress.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace zbpp::nccl::detail {

/// Waits in the steps of one rank. Used by the thread that runs steps.
class host_wait {
 public:
  /// What it refers to outlives it.
  explicit host_wait(asio::step_supervisor& supervisor) noexcept : supervisor_(supervisor) {}

  /// Gets ready for the steps of a run.
  void start_run(communicator_set& communicators, step_status const& status) noexcept {
    communicators_ = &communicators;
    status_ = &status;
  }
  /// Follows the device in a step from now on: of those under way, in the one that was begun first.
  void follow(device_progress& step) noexcept { progress_ = &step; }
  /// Publishes how far the device is in the step that is followed.
  /// @throws cuda_error when what ran there failed
  void publish() const { progress_->publish(supervisor_.channel().board()); }
  /// Runs socket handlers and publishes how far the device is until `done()` holds or the step has
  /// failed. @return whether the step goes on
  /// @throws cuda_error; nccl_error
  template <class Done>
  bool until(Done const& done) {
    until(done, [this] { return supervisor_.look() || status_->has_failed(); });
    return !status_->has_failed();
  }
  /// The same when a step has failed here, for steps before it: until `done()` holds or the run is
  /// over.
  /// @throws cuda_error; nccl_error
  template <class Done>
  void for_steps_before(Done const& done) {
    until(done, [this] { return supervisor_.look(); });
  }
  /// Waits until no pass that was issued waits for a message any more: what is left takes the
  /// device only. @return whether the step goes on
  /// @throws cuda_error; nccl_error
  bool until_messages_are_here() {
    return until([this] { return !progress_->is_waiting(); });
  }
  /// Waits until a rank has told what this one is blocked by, if it is, or something else has
  /// notified it; sends states meanwhile.
  /// @param channel  of the state; none between two steps, when the rank waits only until what it
  ///                 sent has left
  /// @param states   null where ranks exchange none
  /// @throws cuda_error; nccl_error
  void until_told(
      int channel, asio::detail::tcp_states* states, wakeup const& wake, std::uint32_t seen) {
    auto const is_over = [&] {
      if (wake.load(std::memory_order_acquire) != seen) return true;
      return channel == state_map::none && (states == nullptr || states->transport().is_flushed());
    };
    if (states != nullptr) states->transport().flush();
    until([&] {
      if (is_over()) return true;
      // A last state and the end of its connection may arrive together: the state goes first.
      if (states != nullptr)
        supervisor_.channel().loop().exclusively([&] {
          if (!is_over()) states->report_needed(channel);
        });
      return false;
    });
  }
  /// Waits until the device is done with all that was issued, and states have left.
  /// @param states  null where ranks exchange none
  /// @throws cuda_error; nccl_error
  void until_done(
      cuda::device_context const& context, transport& messages, asio::detail::tcp_states* states) {
    messages.mark_end();
    until([&] {
      if (!context.end().is_complete()) return false;
      supervisor_.channel().board().enter(asio::progress_phase::sending);
      if (states == nullptr || states->transport().is_flushed()) return messages.is_done();
      states->transport().flush();
      supervisor_.channel().loop().exclusively([&] { states->report_needed(state_map::none); });
      return false;
    });
  }
  /// Waits until all ranks know of the failure of the run, but not longer than its deadline. Only
  /// then may a rank give up messages: passes that run without them compute garbage or fault, here
  /// and where their results go, and no rank takes that for a step or for the first failure.
  void until_all_told() {
    auto& run = supervisor_.channel();
    auto const end = std::chrono::steady_clock::now() + run.settings().deadline;
    auto const are_all_told = [&run] { return run.are_all_told(); };
    poll(
        [&] {
          return run.loop().exclusively(are_all_told) || std::chrono::steady_clock::now() > end;
        },
        pause);
  }

 private:
  static void pause(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }

  template <class Done, class Over>
  void until(Done const& done, Over const& over) {
    poll(
        [&] {
          if (over()) return true;
          publish();
          if (done()) return true;
          communicators_->check_errors();
          return false;
        },
        pause,
        std::chrono::microseconds(50));
  }

  asio::step_supervisor& supervisor_;
  device_progress* progress_ = nullptr;  // of the step that is followed
  communicator_set* communicators_ = nullptr;
  step_status const* status_ = nullptr;
};

}  // namespace zbpp::nccl::detail
