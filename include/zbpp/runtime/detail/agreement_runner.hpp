// SPDX-License-Identifier: Apache-2.0
//
// Runs what the program of a rank has for its optimizer steps: waits for what neighbours tell of
// their gradients, tells what the rank knows, and notes when it did so.
#pragma once

#include <zbpp/analysis/detail/agreement_times.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/detail/rank_setup.hpp>
#include <zbpp/runtime/detail/step_agreement.hpp>
#include <zbpp/runtime/engine_run.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/pass_observer.hpp>
#include <zbpp/runtime/state_link.hpp>

namespace zbpp::detail {

/// Takes time where the clock of a rank is planned or virtual; elsewhere it passes by itself.
template <class PassObserver>
void spend(PassObserver& observer, ticks time) {
  if constexpr (spends_time<PassObserver>) observer.spend(time);
}

/// Runs the part of a rank in the agreement on optimizer steps, where it has one.
class agreement_runner {
 public:
  explicit agreement_runner(rank_setup const& setup)
      : part_(setup.agreement), times_(agreement_times_of(setup.problem, setup.rank)) {}

  /// Begins a run: forgets what the last one waited for, if it failed.
  void begin(engine_run const& run) noexcept {
    awaited_ = state_map::none;
    listener_ = run.listener;
    judged_ = run.first - 1;
  }
  /// Tells the rank before the verdict that belongs to the step that begins, where there is one.
  template <class Transport, class PassObserver>
  void tell_held_verdict(Transport& transport, PassObserver& observer) {
    if (part_ != nullptr && part_->holds_verdict())
      part_->tell_held_verdict(transport.states(), observer.arrival_of_send(times_.verdict));
  }
  /// Tells the run's listener of a step that was judged meanwhile.
  void report_decided_steps() {
    if (part_ == nullptr || listener_ == nullptr) return;
    if (part_->report().step > judged_) listener_->on_decided(judged_ = part_->report().step);
  }
  /// @return the part of the rank; null where it has none
  [[nodiscard]] step_agreement* part() const noexcept { return part_; }
  /// @return the channel of the gradients or verdict that the rank waits for, or none
  [[nodiscard]] int awaited() const noexcept { return awaited_; }

  /// Runs as much of `reduce_norm` or `validate` as can be.
  /// @param own     the places of this step
  /// @param before  of the step before; null in the first of a run
  template <class PassObserver>
  agreement_progress run(
      instruction_kind kind,
      state_link& states,
      PassObserver& observer,
      pass_context ctx,
      step_places const& own,
      rank_update* before) {
    bool const is_norm = kind == instruction_kind::reduce_norm;
    for (;;) {
      ticks arrival = 0;
      awaited_ = part_->awaited(kind);
      if (awaited_ != state_map::none) {
        arrival = states.arrival(awaited_);
        if (arrival == state_link::not_yet || !observer.has_arrived(arrival))
          return agreement_progress::waits;
      }
      if constexpr (awaits_messages<PassObserver>)
        if (is_norm && awaited_ == state_map::none && !observer.await_messages())
          return agreement_progress::waits;
      auto const begun = observer.reach(arrival);
      if (is_norm && awaited_ == state_map::none) spend(observer, times_.norm);
      bool const tells_next = is_norm && !part_->brings_verdict(awaited_);
      auto const sent_at = observer.arrival_of_send(tells_next ? times_.states : times_.verdict);
      auto const now = observer.reach(0);
      // Before the verdict goes on: once the first rank has it, the step's result is read there.
      if (is_norm)
        note_norm(*own.update, begun, now);
      else if (awaited_ != state_map::none)
        note_verdict(part_->is_pending() ? *before : *own.update, now);
      auto const outcome = part_->run(kind, states, ctx, sent_at);
      // After the measuring, which waits for a device anyway, and before the verdict can be there.
      if (is_norm && awaited_ == state_map::none)
        if constexpr (completes_passes<PassObserver>) observer.complete_passes(own.trace);
      if (outcome == agreement_progress::waits) continue;
      awaited_ = state_map::none;
      return outcome;
    }
  }

 private:
  void note_norm(rank_update& update, ticks begun, ticks now) const noexcept {
    if (awaited_ == state_map::none) update = {.measured = begun};
    update.stepped = update.validated = now;
  }
  static void note_verdict(rank_update& update, ticks now) noexcept {
    update.validated = now;
    if (!update.is_early) update.stepped = now;
  }

  step_agreement* part_;
  agreement_times times_;
  step_listener* listener_ = nullptr;
  std::int64_t judged_ = -1;
  int awaited_ = state_map::none;
};

}  // namespace zbpp::detail
