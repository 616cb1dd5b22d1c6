// SPDX-License-Identifier: Apache-2.0
//
// The handle through which a flow sees its microbatch: who it is, where it is, and its messages.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/runtime/detail/flow_state.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/message.hpp>

#include <cstdint>
#include <utility>

namespace zbpp {

/// Names one microbatch on one stage; a cheap copy, valid for the life of its flow.
class microbatch {
 public:
  explicit microbatch(detail::flow_state& state) noexcept : state_(&state) {}

  /// @return the index of the microbatch within its step
  [[nodiscard]] int index() const noexcept { return state_->microbatch; }
  /// @return how many microbatches make a step
  [[nodiscard]] int count() const noexcept { return state_->common->microbatches; }
  /// @return the stage this flow is on
  [[nodiscard]] int stage() const noexcept { return state_->common->stage; }
  /// @return how many stages there are
  [[nodiscard]] int stages() const noexcept { return state_->common->stages; }
  /// @return whether nobody sends an activation here
  [[nodiscard]] bool is_first_stage() const noexcept { return state_->is_first_stage(); }
  /// @return whether nobody sends a gradient here
  [[nodiscard]] bool is_last_stage() const noexcept { return state_->is_last_stage(); }
  /// @return how many steps were completed before this one
  [[nodiscard]] std::int64_t step() const noexcept { return state_->common->step; }
  /// @return false under `evaluate()`: F is all that happens, so nothing need be kept
  [[nodiscard]] bool is_training() const noexcept { return state_->common->is_training; }
  /// @return whether the program recomputes: F need keep only what R starts from
  [[nodiscard]] bool is_recomputed() const noexcept { return state_->is_recomputed; }
  /// @return whether the running instruction is BW; ask after `recv_gradient()`
  [[nodiscard]] bool is_fused() const noexcept {
    return state_->is_running && state_->running == pass_kind::backward;
  }

  /// Awaits the activation of the stage before; belongs to F. Suspends until the program comes to
  /// F, by when it has arrived; the rank's engine resumes it. Empty on the first stage.
  [[nodiscard]] auto recv_activation() const noexcept {
    return detail::message_awaiter<message, flow_point::receive_activation>(*state_);
  }
  /// Awaits the gradient of the stage after; belongs to B. Suspends until the program comes to B or
  /// BW, by when it has arrived; the rank's engine resumes it. Empty on the last stage.
  [[nodiscard]] auto recv_gradient() const noexcept {
    return detail::message_awaiter<message, flow_point::receive_gradient>(*state_);
  }

  /// Deposits buffers, or one message, for the next stage; belongs to F and stands after it. The
  /// engine holds them until they are shipped, and the next stage may share them: nobody writes to
  /// them any more. Does not suspend. Drops them on the last stage.
  /// @throws error (wrong_flow) when the flow has sent already
  template <class... Parts>
  [[nodiscard]] auto send_activation(Parts&&... parts) const {
    hold(flow_point::send_activation, state_->is_last_stage(), std::forward<Parts>(parts)...);
    return detail::message_awaiter<void, flow_point::send_activation>(*state_);
  }
  /// Deposits buffers, or one message, for the stage before; belongs to B and stands after it. The
  /// engine holds them until they are shipped, and that stage may share them: nobody writes to them
  /// any more. Does not suspend. Drops them on the first stage.
  /// @throws error (wrong_flow) when the flow has sent already
  template <class... Parts>
  [[nodiscard]] auto send_gradient(Parts&&... parts) const {
    hold(flow_point::send_gradient, state_->is_first_stage(), std::forward<Parts>(parts)...);
    return detail::message_awaiter<void, flow_point::send_gradient>(*state_);
  }

  /// States the loss of this microbatch; the step's result carries it.
  /// @throws error (wrong_flow) when this is not the last stage
  void report_loss(double loss) const { this->loss() = loss; }
  /// @return where the loss of this microbatch goes, for a backend that learns it later in the step
  /// @throws error (wrong_flow) when this is not the last stage
  [[nodiscard]] double& loss() const {
    if (!is_last_stage())
      throw error(
          errc::wrong_flow,
          "report_loss() belongs to the last stage",
          {.stage = stage(), .microbatch = index()});
    return state_->common->losses[static_cast<std::size_t>(index())];
  }

 private:
  template <class... Parts>
  void hold(flow_point at, bool nobody_waits, Parts&&... parts) const {
    message taken(std::forward<Parts>(parts)...);
    if (nobody_waits) return;
    if (state_->sent_at != flow_point::start)
      throw error(
          errc::wrong_flow,
          "the flow sends twice before its first message could leave; one message holds up to 8 "
          "buffers",
          {.stage = stage(), .microbatch = index()});
    state_->outgoing = std::move(taken);
    state_->sent_at = at;
  }

  detail::flow_state* state_;
};

}  // namespace zbpp
