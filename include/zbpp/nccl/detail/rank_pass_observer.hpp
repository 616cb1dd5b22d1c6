// SPDX-License-Identifier: Apache-2.0
//
// What follows the passes of a rank over NCCL, and waits at the norm of its gradients.
#pragma once

#include <zbpp/asio/progress.hpp>
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/pass_observer.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/nccl/detail/device_progress.hpp>
#include <zbpp/nccl/detail/host_wait.hpp>

#include <span>

namespace zbpp::nccl::detail {

/// Counts planned time by the costs of issued passes, and records where they begin and end on the
/// device.
class rank_pass_observer {
 public:
  rank_pass_observer() = default;
  rank_pass_observer(
      cuda::pass_observer issued,
      cuda::device_context& context,
      device_progress& progress,
      host_wait& wait,
      asio::progress_board& board) noexcept
      : issued_(issued), context_(&context), progress_(&progress), wait_(&wait), board_(&board) {}

  /// Begins the pair of the next two passes.
  /// @throws cuda_error
  void begin_pair() const { issued_.begin_pair(); }
  /// Begins a pass. @return its planned start
  /// @throws cuda_error
  ticks start(ticks arrival, pass const& what) {
    auto const planned = issued_.start(arrival, what);
    // During a capture the host may ask for no event, and later for none that the graph records.
    if (!context_->is_captured()) {
      wait_->publish();
      progress_->begin(context_->compute(), what);
    }
    return planned;
  }
  /// Ends a pass. @return its planned end
  /// @throws cuda_error
  ticks finish(ticks cost) {
    auto const planned = issued_.finish(cost);
    if (!context_->is_captured()) progress_->end(context_->compute());
    return planned;
  }
  /// Refuses what the last pass has done to a capture of the step.
  /// @throws error (wrong_flow); cuda_error
  void check_pass() const { issued_.check_pass(); }
  /// Begins a step of a run, the next one or the same one anew; blocks until the passes before are
  /// done.
  /// @throws cuda_error; nccl_error
  void begin_step(bool is_next) const {
    if (!wait_->until_messages_are_here()) return;
    progress_->begin_step(*board_);
    issued_.begin_step(is_next);
    board_->begin_attempt(is_next);
  }
  /// Blocks until no pass waits for a message. @return whether the step goes on
  /// @throws cuda_error; nccl_error
  [[nodiscard]] bool await_messages() const { return wait_->until_messages_are_here(); }
  /// Waits for what the passes of the step leave behind, and reads it.
  /// @throws cuda_error
  void complete_passes(std::span<timed_pass> passes) const { issued_.complete_passes(passes); }
  /// Waits for what arrives then, as planned. @return when the rank goes on
  ticks reach(ticks arrival) noexcept { return issued_.reach(arrival); }
  /// Takes time for something that is no pass.
  /// @throws as `check_pass`
  void spend(ticks time) { issued_.spend(time); }
  /// @return when a message that is sent now will arrive, as planned
  [[nodiscard]] ticks arrival_of_send(ticks transfer) const noexcept {
    return issued_.arrival_of_send(transfer);
  }
  /// @return true: the device waits for the message, the host does not
  [[nodiscard]] static constexpr bool has_arrived(ticks) noexcept { return true; }
  /// @return the planned end of the last pass
  [[nodiscard]] ticks now() const noexcept { return issued_.now(); }

 private:
  cuda::pass_observer issued_;
  cuda::device_context* context_ = nullptr;
  device_progress* progress_ = nullptr;
  host_wait* wait_ = nullptr;
  asio::progress_board* board_ = nullptr;
};

}  // namespace zbpp::nccl::detail
