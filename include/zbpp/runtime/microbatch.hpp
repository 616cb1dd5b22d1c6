// SPDX-License-Identifier: Apache-2.0
//
// The handle through which a flow sees its microbatch: who it is, where it is, and its messages.
#pragma once

#include <zbpp/model/pass.hpp>
#include <zbpp/runtime/detail/awaiters.hpp>
#include <zbpp/runtime/detail/flow_state.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/message.hpp>

#include <cstdint>
#include <utility>

namespace zbpp {

class rank_grid;

/// Names one microbatch on one stage; cheap to copy, valid for the life of its flow.
class microbatch {
 public:
  /// Names the microbatch of a flow; for engines.
  explicit microbatch(detail::flow_state& state) noexcept : state_(&state) {}

  [[nodiscard]] int index() const noexcept { return state_->microbatch; }
  [[nodiscard]] int count() const noexcept { return state_->common->microbatches; }
  [[nodiscard]] int stage() const noexcept { return state_->common->stage; }
  [[nodiscard]] int stages() const noexcept { return state_->common->stages; }
  [[nodiscard]] bool is_first_stage() const noexcept { return state_->is_first_stage(); }
  [[nodiscard]] bool is_last_stage() const noexcept { return state_->is_last_stage(); }
  /// @return how many steps were completed before this one
  /// @throws error (wrong_flow) while the step is captured for replay, which would keep the number
  [[nodiscard]] std::int64_t step() const {
    if (state_->common->is_captured) refuse_captured_step();
    return state_->common->step;
  }
  /// @return how many evaluations were completed since the last step, before this one; 0 in a step.
  ///         With `index()` it says which batch of a validation this is
  [[nodiscard]] std::int64_t evaluation() const noexcept { return state_->common->evaluation; }
  /// @return what a pass makes collective calls with: groups, of one where there is no grid
  [[nodiscard]] rank_grid& grid() const noexcept { return *state_->common->grid; }
  /// @return false under `evaluate()`: F is all that happens, so nothing need be kept
  [[nodiscard]] bool is_training() const noexcept { return state_->common->is_training; }
  /// @return whether the program recomputes: F need keep only what R starts from
  [[nodiscard]] bool is_recomputed() const noexcept { return state_->is_recomputed; }
  [[nodiscard]] bool has_recomputation() const noexcept { return state_->common->recomputes; }
  /// @return whether the running instruction is BW; ask after `recv_gradient()`
  [[nodiscard]] bool is_fused() const noexcept {
    return state_->is_running && state_->running == pass_kind::backward;
  }

  /// Receives the activation of the stage before; belongs to F.
  ///
  /// The operation will suspend the flow if F is not running. The rank's engine resumes it, on the
  /// rank's thread, when the program comes to F; the message has arrived by then. Returns an empty
  /// message on the first stage.
  [[nodiscard]] auto recv_activation() const noexcept {
    return detail::message_awaiter<message, flow_point::receive_activation>(*state_);
  }
  /// Receives the gradient of the stage after; belongs to B.
  ///
  /// The operation will suspend the flow if neither B nor BW is running. The rank's engine resumes
  /// it, on the rank's thread, when the program comes to one of them; the message has arrived by
  /// then. Returns an empty message on the last stage.
  [[nodiscard]] auto recv_gradient() const noexcept {
    return detail::message_awaiter<message, flow_point::receive_gradient>(*state_);
  }

  /// Sends buffers, or one message, to the next stage; belongs to F and stands after it.
  ///
  /// Call it right after F; there it never suspends. The engine keeps the message until it sends
  /// it, and the next stage may share its buffers: do not write to them afterwards. What the last
  /// stage sends goes to the callable of `evaluate(on_output)`; elsewhere it is dropped.
  /// @throws error (wrong_flow) when the flow has sent already
  template <class... Buffers>
  [[nodiscard]] auto send_activation(Buffers&&... sent) const {
    bool const nobody_waits = state_->is_last_stage() && !state_->has_output_listener();
    hold(flow_point::send_activation, nobody_waits, std::forward<Buffers>(sent)...);
    return detail::message_awaiter<void, flow_point::send_activation>(*state_);
  }
  /// Sends buffers, or one message, to the stage before; belongs to B and stands after it.
  ///
  /// Call it right after B or BW; there it never suspends. The engine keeps the message until it
  /// sends it, and that stage may share its buffers: do not write to them afterwards. On the first
  /// stage the message is dropped.
  /// @throws error (wrong_flow) when the flow has sent already
  template <class... Buffers>
  [[nodiscard]] auto send_gradient(Buffers&&... sent) const {
    hold(flow_point::send_gradient, state_->is_first_stage(), std::forward<Buffers>(sent)...);
    return detail::message_awaiter<void, flow_point::send_gradient>(*state_);
  }

  /// States the loss of this microbatch; the step's result carries it. Call it in F: an evaluation
  /// runs nothing else.
  /// @throws error (wrong_flow) when this is not the last stage, or while the step is captured for
  ///         replay, which would not state it again
  void report_loss(double loss) const {
    if (state_->common->is_captured) refuse_captured_loss();
    this->loss() = loss;
  }
  /// Gives what the gradient of the loss is multiplied by; the optimizer divides by it.
  ///
  /// Ask in B or BW: while F runs, the step before may still be validated, which changes it.
  /// @throws error (wrong_flow) in another pass
  [[nodiscard]] double loss_scale() const;
  /// @return where the loss of this microbatch goes, for a backend that learns it later in the step
  /// @throws error (wrong_flow) when this is not the last stage
  [[nodiscard]] double& loss() const;

 private:
  [[noreturn]] void refuse_second_send() const;
  [[noreturn]] static void refuse_captured_step();
  [[noreturn]] static void refuse_captured_loss();

  // Keeps what is sent until the engine ships it.
  template <class... Buffers>
  void hold(flow_point at, bool nobody_waits, Buffers&&... sent) const {
    message taken(std::forward<Buffers>(sent)...);
    if (nobody_waits) return;
    if (state_->sent_at != flow_point::start) refuse_second_send();
    state_->outgoing = std::move(taken);
    state_->sent_at = at;
  }

  detail::flow_state* state_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/microbatch.ipp>
#endif
