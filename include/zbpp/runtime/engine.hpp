// SPDX-License-Identifier: Apache-2.0
//
// The engine of one rank: it walks the rank's program and, at each pass, resumes the flow that the
// pass belongs to. It waits for messages only, never for a send, and it allocates nothing once it
// has run a step.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/detail/chunk_state.hpp>
#include <zbpp/runtime/detail/flow_state.hpp>
#include <zbpp/runtime/detail/frame_pool.hpp>
#include <zbpp/runtime/detail/rank_code.hpp>
#include <zbpp/runtime/detail/refuse_flow.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp {

/// Tells how far `engine::advance` came.
enum class progress : std::uint8_t {
  done,     ///< the whole program ran
  blocked,  ///< the next pass waits for a message
  failed,   ///< the step has failed, here or on another rank
  paused,   ///< as many passes ran as were asked for
};

/// Holds the memory of one rank.
struct rank_memory {
  arena buffers;
  frame_pool frames;
};

/// Runs the program of one rank.
/// @tparam PassObserver  gives times to passes and messages: `start(arrival)`, `finish(cost)`,
///                `arrival_of_send(transfer)`, `has_arrived(arrival)`
template <transport Transport, class PassObserver>
class engine {
 public:
  static constexpr ticks not_yet = Transport::not_yet;

  /// Makes the engine of a rank for a verified program. `stages` are those of the rank, in the
  /// order of the model. What the references name must outlive the engine, and memory must not
  /// move.
  engine(
      int rank,
      program const& program,
      traffic const& messages,
      problem const& problem,
      std::span<stage_ref const> stages,
      rank_memory& memory,
      pass_context ctx,
      Transport& transport,
      step_status& status,
      bool is_training)
      : rank_(rank),
        map_(&messages.map()),
        code_(detail::make_rank_code(program, messages, rank)),
        chunks_(detail::make_chunk_states(program, problem, rank, stages, is_training)),
        flows_(detail::index(code_.flow_slots)),
        memory_(&memory),
        context_(ctx),
        transport_(&transport),
        status_(&status) {}

  engine(engine&&) = default;
  engine& operator=(engine&&) = delete;
  ~engine() { abandon(); }

  /// Gets ready for a step.
  /// @param losses  one per microbatch, written by the last stage
  /// @param trace   one entry per pass, gets start and end of each
  void begin(
      std::int64_t step,
      PassObserver observer,
      std::span<double> losses,
      std::span<timed_pass> trace) {
    next_ = 0;
    traced_ = 0;
    observer_ = observer;
    trace_ = trace;
    failure_ = {};
    for (auto& chunk : chunks_) {
      chunk.common.step = step;
      chunk.common.losses = losses.data();
    }
    memory_->buffers.start_step();
  }

  /// Lets every stage get ready, before the first step.
  void warm_up() {
    for (auto const& chunk : chunks_) chunk.run.warm_up(context_);
  }

  /// Runs instructions until the program ends, the next pass waits for a message, the step fails,
  /// or the next pass would be one more than `most`. Call it from one thread at a time.
  progress advance(std::size_t most = ~std::size_t{0}) noexcept {
    frame_pool::scope const frames(memory_->frames);
    auto const last = most < trace_.size() - traced_ ? traced_ + most : trace_.size();
    try {
      for (; next_ < code_.instructions.size(); ++next_) {
        if (status_->has_failed()) return progress::failed;
        auto const& i = code_.instructions[next_];
        if (traced_ == last && i.kind <= instruction_kind::recompute) return progress::paused;
        if (!run(i)) return progress::blocked;
        if (i.frees_slot) free_slot(flows_[detail::index(i.slot)]);
      }
      return progress::done;
    } catch (...) {
      fail(std::current_exception());
      return progress::failed;
    }
  }

  /// @return when the message that blocks the rank arrives; `not_yet` before it is sent
  [[nodiscard]] ticks blocked_until() const noexcept {
    auto const& i = code_.instructions[next_];
    return transport_->arrival(i.channel, i.sequence);
  }

  /// @return the channel of that message
  [[nodiscard]] int blocked_on() const noexcept { return code_.instructions[next_].channel; }

  /// Destroys all flows and their messages; after a step that failed, when no rank is running.
  void abandon() noexcept {
    for (auto& state : flows_) {
      if (state.flow) state.flow.destroy();
      state = {};
    }
  }

  /// Fails the step, unless it has failed here, for what came to light outside of a pass.
  void fail(std::exception_ptr why) noexcept {
    if (failure_.exception) return;
    if (next_ == code_.instructions.size())
      failure_ = {{.rank = rank_}, {}, std::move(why)};
    else
      failure_ = {place(), current(), std::move(why)};
    status_->fail(rank_);
    transport_->abort();
  }

  /// @return how many passes have run in this step
  [[nodiscard]] std::size_t passes_run() const noexcept { return traced_; }
  /// @return start and end of each pass
  [[nodiscard]] std::span<timed_pass> trace() const noexcept { return trace_; }
  /// @return the clock that the step runs by
  [[nodiscard]] PassObserver const& time() const noexcept { return observer_; }
  /// @return what went wrong here; its `exception` is null when nothing did
  [[nodiscard]] failure const& what_failed() const noexcept { return failure_; }
  /// @return the rank
  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  using ready_instruction = detail::ready_instruction;

  using chunk_state = detail::chunk_state;

  // Returns false when the instruction has to wait.
  bool run(ready_instruction const& i) {
    auto& chunk = chunks_[detail::index(i.chunk)];
    switch (i.kind) {
      case instruction_kind::optimizer_step: chunk.run.update(context_); return true;
      case instruction_kind::receive_activation:
        transport_->post_receive(i.channel, chunk.activation_in);
        return true;
      case instruction_kind::receive_gradient:
        transport_->post_receive(i.channel, chunk.costs.edge);
        return true;
      case instruction_kind::send_activation:
      case instruction_kind::send_gradient: send(i, chunk); return true;
      default: return run_pass(i, chunk);
    }
  }

  bool run_pass(ready_instruction const& i, chunk_state& chunk) {
    auto& state = flows_[detail::index(i.slot)];
    auto const kind = static_cast<pass_kind>(i.kind);
    ticks arrival = 0;
    if (i.channel != channel_map::none) {
      arrival = transport_->arrival(i.channel, i.sequence);
      if (arrival == not_yet || !observer_.has_arrived(arrival)) return false;
      bool const forward = kind == pass_kind::forward;
      state.received =
          transport_->take(i.channel, i.sequence, forward ? chunk.activation_in : chunk.costs.edge);
      if (i.retired != ready_instruction::none)
        transport_->retire(map_->reverse(i.channel), i.retired);
    }
    if (kind == pass_kind::forward) start_flow(i, chunk, state);
    expect_flow_at(kind, state);

    state.running = kind;
    state.is_running = true;
    state.open = detail::open_passes(kind);
    state.has_received = false;
    auto& timed = trace_[traced_++];
    timed.start = observer_.start(arrival, timed.pass);
    state.flow.resume();
    timed.end = observer_.finish(chunk.costs.of(kind));
    state.is_running = false;
    if (state.failure) std::rethrow_exception(std::exchange(state.failure, nullptr));
    if (!state.open.empty()) refuse_flow(state, "went on to ", to_string(state.point));

    bool const consumes = kind != pass_kind::backward_weight && kind != pass_kind::recompute;
    if (consumes && !state.received.empty()) release_input(kind, state);
    if (i.hand_over != ready_instruction::none) hand_over(i, chunk, state);
    if (i.ends_flow) end_flow(chunk, state);
    return true;
  }

  void start_flow(ready_instruction const& i, chunk_state& chunk, detail::flow_state& state) {
    state.common = &chunk.common;
    state.microbatch = i.microbatch;
    state.is_recomputed = i.is_recomputed;
    state.context = &context_;
    state.flow = chunk.run(microbatch(state)).release(state);
  }

  void expect_flow_at(pass_kind kind, detail::flow_state const& state) const {
    auto const at = state.point;
    if (!detail::may_begin(kind, at))
      at == flow_point::end ? refuse_flow(state, "has ended")
                            : refuse_flow(state, "awaits ", to_string(at));
  }

  [[noreturn]] void refuse_flow(
      detail::flow_state const& state,
      std::string_view does,
      std::string_view point = {},
      std::string_view after = {}) const {
    detail::refuse_flow(current(), place(), state.microbatch, does, point, after);
  }

  // What the flow keeps of its input after the pass is an activation from now on.
  void release_input(pass_kind kind, detail::flow_state& state) const {
    if (!state.has_received)
      refuse_flow(
          state,
          "has not called ",
          kind == pass_kind::forward ? "recv_activation()" : "recv_gradient()");
    for (auto const& each : state.received.buffers())
      if (each.use_count() > 1) each.retag(purpose::activation);
    state.received.clear();
  }

  // Gives what a pass made to the neighbouring chunk of the same rank: the same memory, no message.
  void hand_over(ready_instruction const& i, chunk_state const& chunk, detail::flow_state& state) {
    auto& to = flows_[detail::index(i.hand_over)];
    to.received = std::move(outgoing_of(i.kind == instruction_kind::forward, chunk, state));
  }

  void send(ready_instruction const& i, chunk_state const& chunk) {
    bool const forward = i.kind == instruction_kind::send_activation;
    auto& msg = outgoing_of(forward, chunk, flows_[detail::index(i.slot)]);
    auto const transfer = forward ? chunk.next_transfer : chunk.previous_transfer;
    transport_->send(i.channel, std::move(msg), observer_.arrival_of_send(transfer));
  }

  [[nodiscard]] message& outgoing_of(
      bool forward, chunk_state const& chunk, detail::flow_state& state) const {
    auto const wanted = forward ? flow_point::send_activation : flow_point::send_gradient;
    if (std::exchange(state.sent_at, flow_point::start) != wanted)
      refuse_flow(state, "has not called ", to_string(wanted));
    auto& msg = state.outgoing;
    auto const most = forward ? chunk.costs.edge : chunk.activation_in;
    if (most > 0 && msg.total_size() > most)
      detail::refuse_size(place(), chunk.common.stage, forward, msg.total_size(), most);
    return msg;
  }

  void end_flow(chunk_state const& chunk, detail::flow_state& state) const {
    if (chunk.common.is_training && state.point != flow_point::end)
      refuse_flow(state, "still awaits ", to_string(state.point), " after its last pass");
    std::exchange(state.flow, nullptr).destroy();
  }

  // Gets a slot ready for another flow; this one is gone, with all it sent.
  void free_slot(detail::flow_state& state) const {
    if (state.sent_at != flow_point::start)
      refuse_flow(state, "has called ", to_string(state.sent_at), " in another pass");
    state.reset();
  }

  [[nodiscard]] instruction current() const noexcept {
    auto const& i = code_.instructions[next_];
    return {i.kind, chunks_[detail::index(i.chunk)].common.stage, i.microbatch};
  }
  [[nodiscard]] location place() const noexcept {
    auto const what = current();
    return {rank_, static_cast<std::int64_t>(next_), what.stage, what.microbatch};
  }

  int rank_;
  channel_map const* map_;
  detail::rank_code code_;
  std::vector<chunk_state> chunks_;
  std::vector<detail::flow_state> flows_;
  rank_memory* memory_;
  pass_context context_;
  Transport* transport_;
  step_status* status_;
  PassObserver observer_{};
  std::span<timed_pass> trace_;
  std::size_t traced_ = 0;
  std::size_t next_ = 0;
  failure failure_;
};

}  // namespace zbpp
