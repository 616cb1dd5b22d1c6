// SPDX-License-Identifier: Apache-2.0
//
// Follows the passes of a rank on a GPU as the host issues them. Public for authors of backends.
//
// The host issues work long before it runs, so time is counted as planned; the device_context
// measures when passes really run.
#pragma once

#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/nvtx.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <span>

namespace zbpp::cuda {

/// Counts a rank's planned time by the costs of the passes that are issued.
class pass_observer {
 public:
  pass_observer() = default;
  explicit pass_observer(device_context& context) noexcept : context_(&context) {}

  /// Begins the pair of the next two passes. @throws cuda_error
  void begin_pair() const { context_->begin_pair(); }
  /// Begins a pass. @return its planned start
  /// @throws cuda_error
  ticks start(ticks arrival, pass const& of) {
    context_->begin_pass(of.is_paired);
    range_.open(of);
    return now_ = std::max(now_, arrival);
  }
  /// Ends a pass. @return its planned end
  /// @throws cuda_error
  ticks finish(ticks cost) {
    range_.close();
    context_->end_pass();
    return now_ += cost;
  }
  /// Refuses what the last pass has done to a capture of the step.
  /// @throws error (wrong_flow); cuda_error
  void check_pass() const { context_->check_capture(); }
  /// Begins a step of a run, the next one or the same one again.
  void begin_step(bool /*is_next*/) const noexcept { context_->begin_step(); }
  /// Waits for what the passes of the step leave behind, and reads it: losses, measured times.
  /// @throws cuda_error
  void complete_passes(std::span<timed_pass> passes) const {
    context_->wait_for_results();
    context_->read_results(passes);
  }
  /// Waits for what arrives then, as planned. @return when the rank goes on
  ticks reach(ticks arrival) noexcept { return now_ = std::max(now_, arrival); }
  /// Takes time for something that is no pass.
  /// @throws as `check_pass`
  void spend(ticks time) {
    context_->check_capture();
    now_ += time;
  }
  [[nodiscard]] ticks arrival_of_send(ticks transfer) const noexcept { return now_ + transfer; }
  /// @return true: the device waits for the message, the host does not
  [[nodiscard]] static constexpr bool has_arrived(ticks) noexcept { return true; }
  /// @return the planned end of the last pass
  [[nodiscard]] ticks now() const noexcept { return now_; }

 private:
  device_context* context_ = nullptr;
  nvtx_range range_;
  ticks now_ = 0;
};

}  // namespace zbpp::cuda
