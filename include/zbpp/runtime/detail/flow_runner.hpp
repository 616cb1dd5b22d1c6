// SPDX-License-Identifier: Apache-2.0
//
// The flows of one rank and what they exchange: starts, resumes and ends them as its instructions
// say, and moves their messages.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/message_record.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/detail/chunk_state.hpp>
#include <zbpp/runtime/detail/flow_state.hpp>
#include <zbpp/runtime/detail/rank_code.hpp>
#include <zbpp/runtime/detail/rank_setup.hpp>
#include <zbpp/runtime/detail/refuse_flow.hpp>
#include <zbpp/runtime/engine_run.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/pass_observer.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Runs the flows of one rank.
template <transport Transport>
class flow_runner {
 public:
  flow_runner(rank_setup const& setup, Transport& transport)
      : rank_(setup.rank),
        map_(&setup.messages.map()),
        code_(make_rank_code(setup.program, setup.messages, setup.rank)),
        chunks_(make_chunk_states(setup)),
        flows_(index(code_.flow_slots)),
        context_(setup.ctx),
        transport_(&transport) {
    state_times(code_, setup.program.instructions(setup.rank), setup.problem);
  }

  /// @param latest  becomes when the last message of a pass arrived, or of the pair that it begins
  /// @return one that is still awaited; its channel is `none` when there is none
  template <class PassObserver>
  [[nodiscard]] awaited_message awaited_by(
      ready_instruction const& i, PassObserver& observer, ticks& latest) const {
    if (i.is_paired) return {};  // taken by the pass before it
    if (!has_input(i, observer, latest)) return {i.channel, i.sequence};
    if (!i.begins_pair) return {};
    auto const& second = beside(i, 1);
    if (!has_input(second, observer, latest)) return {second.channel, second.sequence};
    return {};
  }

  /// Takes the message of a pass, or both of the pair that it begins, once all are there.
  /// @param latest  becomes when the last of them arrived
  /// @return one that is still awaited; its channel is `none` when there is none
  template <class PassObserver>
  [[nodiscard]] awaited_message take_inputs(
      ready_instruction const& i, PassObserver& observer, ticks& latest) {
    if (i.is_paired) return {};
    if (auto const awaited = awaited_by(i, observer, latest); awaited.channel != channel_map::none)
      return awaited;
    if (i.channel != channel_map::none) take_input(i, observer);
    if (!i.begins_pair) return {};
    if (auto const& second = beside(i, 1); second.channel != channel_map::none)
      take_input(second, observer);
    return {};
  }

  /// Runs a pass whose message is taken, and ends it. Both passes of a pair end together, with the
  /// second: neither frees memory earlier.
  /// @param times  of the passes of the step, gets those of the pass
  /// @param number  of the pass in it; the first of a pair has the one before that of the second
  template <class PassObserver>
  void run_pass(
      ready_instruction const& i,
      ticks arrival,
      PassObserver& observer,
      std::span<timed_pass> times,
      std::size_t number) {
    if constexpr (observes_pairs<PassObserver>)
      if (i.begins_pair) observer.begin_pair();
    auto& chunk = chunk_of(i);
    auto& state = state_of(i);
    auto& timed = times[number];
    resume(i, chunk, state, arrival, observer, timed);
    if (i.begins_pair) return;
    if (i.is_paired) {
      auto& timed_before = times[number - 1];
      timed.start = timed_before.start;
      timed_before.end = timed.end;
      auto const& first = beside(i, -1);
      complete(first, chunk_of(first), state_of(first));
    }
    complete(i, chunk, state);
  }

  /// Opens the slot of a message.
  void post_receive(ready_instruction const& i) {
    auto const& chunk = chunk_of(i);
    bool const forward = i.kind == instruction_kind::receive_activation;
    transport_->post_receive(i.channel, forward ? chunk.activation_in : chunk.costs.edge);
  }

  /// Releases the messages that have to be consumed before a send. They always will be:
  /// `evaluation_depth` picks a depth of channels with which no ranks wait in a cycle.
  /// @return false when it is not consumed yet
  [[nodiscard]] bool make_room(ready_instruction const& i) {
    if (!has_room(i)) return false;
    transport_->retire(i.channel, i.retired);
    return true;
  }
  /// @return whether an instruction is a send that needs room, and there is some
  [[nodiscard]] bool may_send(ready_instruction const& i) const noexcept {
    bool const is_send = i.kind == instruction_kind::send_activation;
    return is_send && i.retired != ready_instruction::none && has_room(i);
  }
  /// Ships what the flow of an instruction made; there is room for it.
  template <class PassObserver>
  void send(ready_instruction const& i, PassObserver& observer) {
    auto const& chunk = chunk_of(i);
    bool const forward = i.kind == instruction_kind::send_activation;
    auto& msg = outgoing_of(i, forward, chunk, state_of(i));
    if (record_ != nullptr) record_of(i).sent = observer.reach(0);
    transport_->send(i.channel, std::move(msg), observer.arrival_of_send(i.takes));
  }

  /// Gets a slot ready for another flow; that of an instruction is gone, with all it sent.
  void free_slot(ready_instruction const& i) {
    auto& state = state_of(i);
    if (state.sent_at != flow_point::start)
      refuse_flow(i, "has called ", to_string(state.sent_at), " in another pass");
    state.reset();
  }

  /// Begins a step, or an evaluation.
  /// @param losses  one per microbatch, written by the last stage
  /// @param record  gets the times of messages; null where none are recorded
  void begin_step(
      std::int64_t step,
      std::int64_t evaluation,
      std::span<double> losses,
      message_record* record) {
    record_ = record;
    for (auto& chunk : chunks_) {
      chunk.common.step = step;
      chunk.common.evaluation = evaluation;
      chunk.common.losses = losses.data();
    }
  }

  /// Says whether what flows do is captured, to be replayed in later steps.
  void set_captured(bool is_captured) noexcept {
    for (auto& chunk : chunks_) chunk.common.is_captured = is_captured;
  }
  [[nodiscard]] bool is_training() const noexcept { return chunks_.front().common.is_training; }

  /// Destroys all flows and their messages.
  void abandon() noexcept {
    for (auto& state : flows_) {
      if (state.flow) state.flow.destroy();
      state = {};
    }
  }

  [[nodiscard]] instruction named(ready_instruction const& i) const noexcept {
    return {i.kind, chunks_[index(i.chunk)].common.stage, i.microbatch};
  }
  [[nodiscard]] location place_of(ready_instruction const& i) const noexcept {
    auto const sent = named(i);
    return {rank_, position_of(i), sent.stage, sent.microbatch};
  }
  [[nodiscard]] rank_code const& code() const noexcept { return code_; }
  [[nodiscard]] pass_context context() const noexcept { return context_; }
  [[nodiscard]] std::span<chunk_state> chunks() noexcept { return chunks_; }

 private:
  // Tells whether the message of a pass is there, if it has one.
  template <class PassObserver>
  [[nodiscard]] bool has_input(
      ready_instruction const& i, PassObserver& observer, ticks& latest) const {
    if (i.channel == channel_map::none) return true;
    auto const arrival = transport_->arrival(i.channel, i.sequence);
    if (arrival == Transport::not_yet || !observer.has_arrived(arrival)) return false;
    latest = std::max(latest, arrival);
    return true;
  }

  template <class PassObserver>
  void take_input(ready_instruction const& i, PassObserver& observer) {
    auto const& chunk = chunk_of(i);
    bool const forward = i.kind == instruction_kind::forward;
    if (record_ != nullptr) note_arrival(i, observer);
    state_of(i).received =
        transport_->take(i.channel, i.sequence, forward ? chunk.activation_in : chunk.costs.edge);
    if (record_ != nullptr) record_of(i).taken = observer.reach(record_of(i).arrived);
    if (i.retired != ready_instruction::none) tell_consumed(i);
  }

  // Between ranks of a process, a message that says nothing else has arrived once it is sent.
  template <class PassObserver>
  void note_arrival(ready_instruction const& i, PassObserver const& observer) {
    auto& timed = record_of(i);
    if constexpr (clocked_transport<Transport>)
      timed.arrived = observer.time_of(transport_->arrived_at(i.channel, i.sequence));
    else
      timed.arrived = std::max(timed.sent, transport_->arrival(i.channel, i.sequence));
  }
  [[nodiscard]] timed_message& record_of(ready_instruction const& i) {
    return (*record_)[i.channel][index(i.sequence)];
  }

  template <class PassObserver>
  void resume(
      ready_instruction const& i,
      chunk_state& chunk,
      flow_state& state,
      ticks arrival,
      PassObserver& observer,
      timed_pass& timed) {
    auto const kind = static_cast<pass_kind>(i.kind);
    if (kind == pass_kind::forward) start_flow(i, chunk, state);
    expect_flow_at(i, state);

    state.running = kind;
    state.is_running = true;
    state.open = open_passes(kind);
    state.has_received = false;
    timed.start = observer.start(arrival, timed.pass);
    state.flow.resume();
    timed.end = observer.finish(i.takes);
    state.is_running = false;
    if (state.failure) std::rethrow_exception(std::exchange(state.failure, nullptr));
    if constexpr (checks_passes<PassObserver>) observer.check_pass();
    if (!state.open.empty()) refuse_flow(i, "went on to ", to_string(state.point));
  }

  // What it consumed is free, and what it made may go on.
  void complete(ready_instruction const& i, chunk_state const& chunk, flow_state& state) {
    auto const kind = static_cast<pass_kind>(i.kind);
    bool const consumes = kind != pass_kind::backward_weight && kind != pass_kind::recompute;
    if (consumes && !state.received.empty()) release_input(i, state);
    if (i.hand_over != ready_instruction::none) hand_over(i, chunk, state);
    if (i.ends_flow) end_flow(i, chunk, state);
  }

  [[nodiscard]] bool has_room(ready_instruction const& i) const noexcept {
    if constexpr (acknowledging_transport<Transport>)
      return transport_->is_released(i.channel, i.retired);
    return true;
  }

  // Releases what a message tells to be consumed; in an evaluation, tells the sender instead.
  void tell_consumed(ready_instruction const& i) {
    if constexpr (acknowledging_transport<Transport>)
      if (i.acknowledges) return transport_->acknowledge(i.channel, i.retired);
    transport_->retire(map_->reverse(i.channel), i.retired);
  }

  void start_flow(ready_instruction const& i, chunk_state& chunk, flow_state& state) {
    state.common = &chunk.common;
    state.microbatch = i.microbatch;
    state.is_recomputed = i.is_recomputed;
    state.context = &context_;
    state.has_loss = false;
    state.flow = chunk.run(microbatch(state)).release(state);
  }

  void expect_flow_at(ready_instruction const& i, flow_state const& state) const {
    auto const at = state.point;
    if (!may_begin(static_cast<pass_kind>(i.kind), at))
      at == flow_point::end ? refuse_flow(i, "has ended")
                            : refuse_flow(i, "awaits ", to_string(at));
  }

  [[noreturn]] void refuse_flow(
      ready_instruction const& i,
      std::string_view does,
      std::string_view point = {},
      std::string_view after = {}) const {
    detail::refuse_flow(named(i), place_of(i), does, point, after);
  }

  // What the flow keeps of its input after the pass is an activation from now on.
  void release_input(ready_instruction const& i, flow_state& state) const {
    if (!state.has_received)
      refuse_flow(
          i,
          "has not called ",
          i.kind == instruction_kind::forward ? "recv_activation()" : "recv_gradient()");
    state.received.retag_shared(purpose::activation);
    state.received.clear();
  }

  // Gives what a pass made to the neighbouring chunk of the same rank: the same memory, no message.
  void hand_over(ready_instruction const& i, chunk_state const& chunk, flow_state& state) {
    flows_[index(i.hand_over)].received =
        std::move(outgoing_of(i, i.kind == instruction_kind::forward, chunk, state));
  }

  [[nodiscard]] message& outgoing_of(
      ready_instruction const& i, bool forward, chunk_state const& chunk, flow_state& state) const {
    auto const wanted = forward ? flow_point::send_activation : flow_point::send_gradient;
    if (std::exchange(state.sent_at, flow_point::start) != wanted)
      refuse_flow(i, "has not called ", to_string(wanted));
    auto& msg = state.outgoing;
    auto const most = forward ? chunk.costs.edge : chunk.activation_in;
    if (most > 0 && msg.total_size() > most)
      refuse_size(place_of(i), chunk.common.stage, forward, msg.total_size(), most);
    return msg;
  }

  void end_flow(ready_instruction const& i, chunk_state const& chunk, flow_state& state) const {
    if (chunk.common.is_training && state.point != flow_point::end)
      refuse_flow(i, "still awaits ", to_string(state.point), " after its last pass");
    std::exchange(state.flow, nullptr).destroy();
    if (!chunk.common.is_training && state.is_last_stage()) end_evaluated(i, state);
  }

  // Of an evaluation somebody takes the outputs, or the losses are all that it gives.
  void end_evaluated(ready_instruction const& i, flow_state& state) const {
    if (state.has_output_listener())
      hand_out(i, state);
    else if (!state.has_loss)
      refuse_missing_loss(place_of(i));
  }

  // Gives what the last stage sent to whoever evaluates.
  void hand_out(ready_instruction const& i, flow_state& state) const {
    if (std::exchange(state.sent_at, flow_point::start) != flow_point::send_activation)
      refuse_flow(i, "has not called ", to_string(flow_point::send_activation));
    auto const given = std::move(state.outgoing);
    (*state.common->outputs)({state.microbatch, given, context_});
  }

  [[nodiscard]] std::ptrdiff_t position_of(ready_instruction const& i) const noexcept {
    return &i - code_.instructions.data();
  }
  // The instruction some places further in the row.
  [[nodiscard]] ready_instruction const& beside(
      ready_instruction const& i, std::ptrdiff_t places) const noexcept {
    auto const at = position_of(i) + places;
    assert(0 <= at && at < std::ssize(code_.instructions));
    return code_.instructions[index(at)];
  }
  [[nodiscard]] chunk_state& chunk_of(ready_instruction const& i) {
    return chunks_[index(i.chunk)];
  }
  [[nodiscard]] flow_state& state_of(ready_instruction const& i) { return flows_[index(i.slot)]; }

  int rank_;
  channel_map const* map_;
  rank_code code_;
  std::vector<chunk_state> chunks_;
  std::vector<flow_state> flows_;
  pass_context context_;
  Transport* transport_;
  message_record* record_ = nullptr;
};

}  // namespace zbpp::detail
