// SPDX-License-Identifier: Apache-2.0
//
// The engine of one rank: it walks the rank's program and, at each pass, resumes the flow that the
// pass belongs to. It waits for other ranks only: for a message, for what they tell of gradients,
// or, in an evaluation and between steps, until they have taken what it sent. It allocates nothing
// once it has run a step.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/detail/agreement_runner.hpp>
#include <zbpp/runtime/detail/callback.hpp>
#include <zbpp/runtime/detail/early_w.hpp>
#include <zbpp/runtime/detail/enqueued_reduction.hpp>
#include <zbpp/runtime/detail/flow_runner.hpp>
#include <zbpp/runtime/detail/frame_pool.hpp>
#include <zbpp/runtime/detail/gradient_reduction.hpp>
#include <zbpp/runtime/detail/rank_code.hpp>
#include <zbpp/runtime/detail/rank_setup.hpp>
#include <zbpp/runtime/detail/rethrow.hpp>
#include <zbpp/runtime/detail/run_terms.hpp>
#include <zbpp/runtime/detail/step_agreement.hpp>
#include <zbpp/runtime/detail/tied_gradients.hpp>
#include <zbpp/runtime/engine_run.hpp>
#include <zbpp/runtime/evaluation.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/gradient_sums.hpp>
#include <zbpp/runtime/group_link.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/pass_observer.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/rank_memory.hpp>
#include <zbpp/runtime/run_options.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/training.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace zbpp {

/// Runs the program of one rank.
template <transport Transport, pass_observer PassObserver>
class engine {
 public:
  static constexpr ticks not_yet = Transport::not_yet;

  /// Makes the engine of a rank. `transport` and `status` outlive it.
  engine(detail::rank_setup const& setup, Transport& transport, step_status& status)
      : rank_(setup.rank),
        flows_(setup, transport),
        memory_(&setup.memory),
        transport_(&transport),
        grid_(setup.grid.has_members() ? &setup.grid : nullptr),
        status_(&status),
        agreement_(setup),
        tied_(setup) {
    if (auto* const part = setup.agreement; part != nullptr) {
      for (auto& chunk : flows_.chunks()) chunk.common.loss_scale = &part->loss_scale();
      part->join(setup.grid.tensor());
    }
    if (setup.on_stall.runs_w)
      early_w_ =
          std::make_unique<detail::early_w>(flows_.code(), flows_.chunks(), setup.on_stall.overrun);
    if (setup.grid.data().link() != nullptr && setup.is_training() &&
        reduces_gradients(setup.program))
      make_reduction(setup);
    is_plain_ = early_w_ == nullptr && reduction_ == nullptr && !setup.grid.has_members();
  }

  engine(engine&&) = default;
  engine& operator=(engine&&) = delete;
  ~engine() { abandon(); }

  /// Gets ready for the steps of a run.
  void begin(engine_run const& run, PassObserver observer) {
    run_ = run;
    step_ = run.first;
    observer_ = observer;
    failure_ = {};
    awaited_ = {};
    agreement_.begin(run);
    state_ = run_state::at_instruction;
    is_ending_ = has_ended_ = false;
    start_step();
  }

  /// Lets every stage get ready, before the first step.
  void warm_up() {
    for (auto const& chunk : flows_.chunks()) chunk.run.warm_up(flows_.context());
  }

  /// Runs instructions until the run ends, the rank waits for another, the step fails, or the next
  /// pass would be one more than `most`. Call it from one thread at a time.
  progress advance(std::size_t most = ~std::size_t{0}) noexcept {
    frame_pool::scope const frames(memory_->frames);
    try {
      for (;;) {
        if (state_ == run_state::between_steps && is_last_step() && has_ended())
          return progress::done;
        if (status_->has_failed()) return progress::failed;
        if (is_ending_) return progress::blocked;
        if (state_ != run_state::at_instruction && !begin_step()) return progress::blocked;
        if (auto const outcome = advance_step(most); outcome != progress::done) return outcome;
      }
    } catch (...) {
      fail(std::current_exception());
      return progress::failed;
    }
  }

  /// @return when what blocks the rank arrives; `not_yet` before it is sent
  [[nodiscard]] ticks blocked_until() const noexcept {
    if constexpr (agreeing_transport<Transport>)
      if (blocked_by() != state_map::none) return transport_->states().arrival(blocked_by());
    if (reduction_ != nullptr && reduction_->is_awaited())
      return reduction_->awaited_until(not_yet);
    if (awaited_.channel == channel_map::none) return not_yet;
    return transport_->arrival(awaited_.channel, awaited_.sequence);
  }

  /// @return the channel of the message that blocks the rank; none when it waits for something else
  [[nodiscard]] int blocked_on() const noexcept { return awaited_.channel; }
  /// @return the channel in the `state_map` of gradients or a verdict that block the rank, or none
  [[nodiscard]] int blocked_by() const noexcept {
    return tied_.awaited() != state_map::none ? tied_.awaited() : agreement_.awaited();
  }

  /// @return whether what blocks the rank comes from another one: a message, gradients or a
  ///         verdict. Else it is between two steps, or at a send that waits for room.
  [[nodiscard]] bool waits_for_peer() const noexcept {
    return blocked_on() != channel_map::none || blocked_by() != state_map::none ||
           waits_for_replicas() || is_ending_;
  }
  [[nodiscard]] bool waits_for_replicas() const noexcept {
    return reduction_ != nullptr && reduction_->is_awaited();
  }
  /// @return whether the rank has run its steps, and members of its groups have not
  [[nodiscard]] bool is_ending() const noexcept { return is_ending_; }

  /// @return the replica whose part of a sum is missing
  [[nodiscard]] int awaited_replica() const noexcept { return reduction_->awaited_replica(); }
  /// @return the instruction at which the rank is; none after the last one
  [[nodiscard]] std::optional<instruction> at() const noexcept {
    if (next_ == code().size()) return std::nullopt;
    return flows_.named(code()[next_]);
  }

  /// @return whether the rank is at a send that waits for room, and there is some now
  [[nodiscard]] bool may_send() const noexcept {
    return next_ < code().size() && flows_.may_send(code()[next_]);
  }

  /// Destroys all flows and their messages; after a step that failed, when no rank is running.
  void abandon() noexcept {
    flows_.abandon();
    memory_->buffers.end_pair();
  }

  /// Fails the step, unless it has failed here, for what came to light outside of a pass.
  void fail(std::exception_ptr why) noexcept {
    if (failure_.exception) return;
    failure found{{.rank = rank_}, {}, std::move(why)};
    if (next_ != code().size()) {
      found.location = flows_.place_of(code()[next_]);
      found.instruction = flows_.named(code()[next_]);
    }
    detail::take_place_of_error(found);
    give_up(std::move(found));
  }

  /// Notes that a device replays the passes of the step; takes the place of `advance`.
  void skip_step() noexcept {
    next_ = code().size();
    traced_ = trace_.size();
    state_ = run_state::between_steps;
  }
  /// Says whether what flows do is captured, to be replayed in later steps.
  void set_captured(bool is_captured) noexcept { flows_.set_captured(is_captured); }
  /// @return whether the host has a part in optimizer steps, for an `optimizer` or by options
  [[nodiscard]] bool has_optimizer() const noexcept { return agreement_.part() != nullptr; }
  [[nodiscard]] bool is_training() const noexcept { return flows_.is_training(); }
  [[nodiscard]] arena& memory() const noexcept { return memory_->buffers; }
  [[nodiscard]] std::int64_t step() const noexcept { return step_; }
  /// @return what it has begun to run, for other processes to compare
  [[nodiscard]] detail::run_statement const& statement() const noexcept { return run_.stated; }
  [[nodiscard]] std::size_t passes_run() const noexcept { return traced_; }
  [[nodiscard]] std::span<timed_pass> trace() const noexcept { return trace_; }
  [[nodiscard]] PassObserver const& time() const noexcept { return observer_; }
  /// @return what went wrong here; its `exception` is null when nothing did
  [[nodiscard]] failure const& what_failed() const noexcept { return failure_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  using ready_instruction = detail::ready_instruction;
  using run_state = detail::run_state;
  // Whether the backend adds gradients up over replicas where they lie.
  static constexpr bool sums_are_enqueued = summing_transport<Transport>;
  using replica_reduction =
      std::conditional_t<sums_are_enqueued, detail::enqueued_reduction, detail::gradient_reduction>;

  void make_reduction(detail::rank_setup const& setup) {
    if constexpr (sums_are_enqueued) {
      reduction_ = std::make_unique<replica_reduction>(setup, transport_->sums());
    } else {
      reduction_ = std::make_unique<replica_reduction>(setup);
      auto const chunks = static_cast<int>(setup.stages.size());
      for (int chunk = 0; setup.agreement != nullptr && chunk < chunks; ++chunk)
        setup.agreement->use_states(chunk, reduction_->states_of(chunk));
    }
  }

  void give_up(failure found) noexcept {
    failure_ = std::move(found);
    status_->fail(rank_);
    transport_->abort();
    if (grid_ != nullptr) grid_->fail(failure_.exception);
  }

  progress advance_step(std::size_t most) {
    auto const first = traced_;
    for (auto const code = this->code(); next_ < code.size(); ++next_) {
      if (status_->has_failed()) return progress::failed;
      auto const& i = code[next_];
      // What waits for a device takes turns as a pass does, and so does a pair.
      if (traced_ - first >= most && !i.is_paired &&
          (is_pass(i.kind) || i.kind == instruction_kind::reduce_norm ||
           i.kind == instruction_kind::send_tied))
        return progress::paused;
      if (!run(i)) return progress::blocked;
      if (state_ == run_state::going_back) return progress::done;
      if (i.frees_slot) flows_.free_slot(i);
    }
    state_ = run_state::between_steps;
    if constexpr (!completes_passes<PassObserver>)  // whose clock is planned
      if (auto* const ended = run_.places_of(step_).ended; ended != nullptr)
        *ended = observer_.reach(0);
    if (agreement_.part() != nullptr) agreement_.part()->end_step();
    agreement_.report_decided_steps();
    if (!is_last_step()) end_step();
    return progress::done;
  }

  void start_step() {
    auto const& places = run_.places_of(step_);
    leave_place();
    next_ = 0;
    traced_ = 0;
    trace_ = places.trace;
    flows_.begin_step(step_, run_.evaluation, places.losses, places.messages);
    memory_->buffers.start_step();
    tied_.begin_step();
    if (reduction_ != nullptr) reduction_->begin_step();
    if (early_w_ != nullptr) early_w_->begin_step(observer_.reach(0), trace_);
    if (agreement_.part() != nullptr) agreement_.part()->begin_step(is_last_step());
    if constexpr (agreeing_transport<Transport>)
      agreement_.tell_held_verdict(*transport_, observer_);
  }
  // Whether the run ends with this step, as far as is known yet.
  [[nodiscard]] bool is_last_step() const noexcept {
    return run_.is_last(step_) ||
           (agreement_.part() != nullptr && agreement_.part()->next() != after_step::go_on);
  }

  // Whether the ranks that share passes with this one have ended their steps, too. One that leaves
  // out a collective call is found by that, since no other call takes its place.
  bool has_ended() {
    if (grid_ == nullptr || has_ended_) return true;
    // After the last W of a stage with experts their gradients are added up.
    bool const adds_experts = is_training() && grid_->expert().size() > 1;
    std::array const axes{grid_axis::tensor, grid_axis::expert, grid_axis::expert_data};
    auto const groups = std::span(axes).first(adds_experts ? 3 : 2);
    if (!std::exchange(is_ending_, true)) {
      awaited_ = {};
      for (auto const axis : groups) grid_->along(axis).end_step();
    }
    has_ended_ = std::ranges::all_of(
        groups, [&](grid_axis axis) { return grid_->along(axis).has_ended_step(); });
    is_ending_ = !has_ended_;
    return has_ended_;
  }

  void end_step() {
    if constexpr (multi_step_transport<Transport>) transport_->end_step(rank_);
  }

  // Begins the next step, or the same one again. Returns false while peers have messages of the
  // last step, or the first time, to take. Inlined, it slows down `advance`.
  [[gnu::noinline]] bool begin_step() {
    if (state_ == run_state::going_back && !discard_cut()) return false;
    awaited_ = {};
    if constexpr (multi_step_transport<Transport>)
      if (!transport_->begin_step(rank_)) return false;
    bool const is_next = state_ == run_state::between_steps;
    if constexpr (observes_steps<PassObserver>) observer_.begin_step(is_next);
    if (is_next) ++step_;
    state_ = run_state::at_instruction;
    start_step();
    return true;
  }

  // Gives up what this step has run and received. Returns false while messages are on their way.
  bool discard_cut() {
    abandon();
    if constexpr (multi_step_transport<Transport>) {
      for (auto const& c : flows_.code().cut) {
        awaited_ = {.channel = c.channel, .sequence = c.count - 1};
        if (!transport_->have_arrived(c.channel, c.count)) return false;
      }
      for (auto const& c : flows_.code().cut) transport_->discard(c.channel, c.count);
    }
    end_step();
    state_ = run_state::rejoining;
    return true;
  }

  // Returns false when an instruction of the agreement has to wait.
  bool agree(instruction_kind kind) {
    if constexpr (agreeing_transport<Transport>) {
      awaited_ = {};
      if (reduction_ != nullptr) agreement_.part()->set_group_request(reduction_->asked());
      auto* const before = step_ > run_.first ? run_.places_of(step_ - 1).update : nullptr;
      auto const outcome = agreement_.run(
          kind, transport_->states(), observer_, flows_.context(), run_.places_of(step_), before);
      if (outcome == detail::agreement_progress::waits) return false;
      if (outcome == detail::agreement_progress::goes_back) state_ = run_state::going_back;
      agreement_.report_decided_steps();
    }
    return true;
  }

  // Returns false when gradients of tied weights are awaited.
  bool sum_tied(ready_instruction const& i) {
    if constexpr (agreeing_transport<Transport>) {
      awaited_ = {};
      if (!has_optimizer() || agreement_.part()->accumulates()) return true;
      auto& link = transport_->states();
      auto const ctx = flows_.context();
      return i.kind == instruction_kind::send_tied ? tied_.send(i.chunk, link, observer_, ctx)
                                                   : tied_.finish(i.chunk, link, observer_, ctx);
    }
    return true;
  }

  // Returns false when the sum over replicas, or their weights, are awaited.
  bool reduce(ready_instruction const& i) {
    awaited_ = {};
    if (!has_optimizer() || agreement_.part()->accumulates()) return true;
    auto const ctx = flows_.context();
    if (i.kind == instruction_kind::finish_reduction)
      return reduction_->finish(i.chunk, observer_, ctx);
    if constexpr (!sums_are_enqueued)
      if (i.kind == instruction_kind::gather_weights)
        return reduction_->finish_gather(i.chunk, observer_, ctx);
    auto& part = *agreement_.part();
    reduction_->start(i.chunk, part.request(), part.terms().learning_rate(), observer_, ctx);
    return true;
  }

  void step(int chunk) {
    if constexpr (agreeing_transport<Transport>)
      if (auto* const update = run_.places_of(step_).update;
          update != nullptr && chunk == 0 && agreement_.part()->steps_early()) {
        update->stepped = observer_.reach(0);
        update->is_early = true;
      }
    auto const ctx = flows_.context();
    auto const& state = flows_.chunks()[detail::index(chunk)];
    if (auto* const part = agreement_.part(); part == nullptr) {
      state.run.update({}, ctx);
    } else {
      part->step(chunk, ctx);
      if (state.run.has_update() && !part->accumulates()) state.run.update(part->settings(), ctx);
    }
    detail::spend(observer_, state.costs.optimizer_step);
    if constexpr (!sums_are_enqueued)
      if (reduction_ != nullptr && reduction_->is_sharded() && !agreement_.part()->accumulates())
        reduction_->start_gather(chunk, observer_, ctx);
  }

  // Returns false when the instruction has to wait.
  bool run(ready_instruction const& i) {
    if (is_pass(i.kind)) return is_plain_ ? run_pass(i) : run_pass_and_more(i);
    switch (i.kind) {
      case instruction_kind::receive_activation:
      case instruction_kind::receive_gradient: flows_.post_receive(i); return true;
      case instruction_kind::send_activation:
      case instruction_kind::send_gradient: return send(i);
      default: return run_rare(i);
    }
  }
  [[gnu::noinline]] bool run_rare(ready_instruction const& i) {
    set_place(i);
    if constexpr (observes_instructions<PassObserver>) observer_.begin(flows_.named(i));
    bool const has_run = run_beside_passes(i);
    leave_place();
    return has_run;
  }
  bool run_beside_passes(ready_instruction const& i) {
    switch (i.kind) {
      case instruction_kind::optimizer_step:
      case instruction_kind::immediate_step: step(i.chunk); return true;
      case instruction_kind::send_tied:
      case instruction_kind::add_tied: return sum_tied(i);
      case instruction_kind::start_reduction:
      case instruction_kind::finish_reduction:
      case instruction_kind::gather_weights: return reduce(i);
      default: return agree(i.kind);
    }
  }

  // Returns false while the channel of an evaluation is full.
  bool send(ready_instruction const& i) {
    if (i.retired != ready_instruction::none && !flows_.make_room(i)) {
      awaited_ = {};
      return false;
    }
    flows_.send(i, observer_);
    return true;
  }

  // Runs a pass where W may move, or sums over replicas go on beside it.
  [[gnu::noinline]] bool run_pass_and_more(ready_instruction const& i) {
    if (reduction_ != nullptr && reduction_->is_open()) reduction_->progress();
    return early_w_ == nullptr ? run_placed(i) : run_pass_or_w(i);
  }
  // Runs a pass that may make collective calls.
  bool run_placed(ready_instruction const& i) {
    set_place(i);
    bool const has_run = run_pass(i);
    leave_place();
    return has_run;
  }
  // Says where collective calls come from.
  void set_place(ready_instruction const& i) noexcept {
    if (grid_ == nullptr) return;
    auto const [kind, stage, microbatch, is_paired] = flows_.named(i);
    grid_->set_place({static_cast<std::int32_t>(kind), stage, microbatch});
  }
  void leave_place() noexcept {
    if (grid_ != nullptr) grid_->set_place({});
  }

  // Runs a pass, unless it has run in front of its place. Until its message is there, runs W that
  // are expected to end by then. Returns false while there is none.
  bool run_pass_or_w(ready_instruction const& i) {
    auto const at = next_;
    if (early_w_->has_run(at)) return true;
    while (!i.is_paired && early_w_->needs_message(at)) {
      ticks arrival = 0;
      awaited_ = flows_.awaited_by(i, observer_, arrival);
      bool const is_sent = awaited_.channel == channel_map::none;
      // Under a virtual clock a rank waits for messages that are sent, too, but not on its thread.
      constexpr bool is_virtual = spends_time<PassObserver>;
      if (is_virtual && !is_sent) return false;
      auto const now = observer_.reach(0);
      bool const is_there = is_sent && (!is_virtual || arrival <= now);
      auto const w = is_there ? detail::early_w::none : early_w_->choose(at, now);
      if (w != detail::early_w::none) {
        run_early(w);
      } else if (is_there || is_virtual) {
        early_w_->note_arrival(at, now, arrival);
        break;
      } else {
        return false;
      }
    }
    return run_noted(i);
  }
  void run_early(std::size_t w) {
    early_w_->move_to_front(w, trace_.subspan(traced_));
    auto const waiting = std::exchange(next_, w);  // where it fails
    run_noted(code()[w]);
    next_ = waiting;
  }
  bool run_noted(ready_instruction const& i) {
    if (!run_placed(i)) return false;
    auto const& timed = trace_[traced_ - 1];
    early_w_->note_pass(i, timed.end - timed.start);
    return true;
  }

  // Inlined into the loop in `advance` and into what runs passes with more beside them.
  [[gnu::always_inline]] bool run_pass(ready_instruction const& i) {
    ticks arrival = 0;
    awaited_ = flows_.take_inputs(i, observer_, arrival);
    if (awaited_.channel != channel_map::none) return false;
    if (i.begins_pair || i.is_paired) memory_->buffers.begin_half();
    flows_.run_pass(i, arrival, observer_, trace_, traced_++);
    if (i.is_paired) memory_->buffers.end_pair();
    if (i.is_last_w && agreement_.part() != nullptr)
      agreement_.part()->complete_gradients(i.chunk, flows_.context());
    return true;
  }

  [[nodiscard]] std::span<ready_instruction const> code() const noexcept {
    return flows_.code().instructions;
  }

  int rank_;
  detail::flow_runner<Transport> flows_;
  rank_memory* memory_;
  Transport* transport_;
  rank_grid* grid_;         // null where the rank is in no group
  bool is_ending_ = false;  // its run, and waits for members that are not
  bool has_ended_ = false;  // as all of them
  step_status* status_;
  detail::agreement_runner agreement_;
  detail::tied_gradients tied_;
  std::unique_ptr<detail::early_w> early_w_;      // null where W keep their places
  std::unique_ptr<replica_reduction> reduction_;  // null where there is nothing to add up
  bool is_plain_ = true;                          // neither of both, nor a group
  PassObserver observer_{};
  engine_run run_;
  std::int64_t step_ = 0;
  run_state state_ = run_state::at_instruction;
  detail::awaited_message awaited_;
  std::span<timed_pass> trace_;
  std::size_t traced_ = 0;
  std::size_t next_ = 0;
  failure failure_;
};

}  // namespace zbpp
