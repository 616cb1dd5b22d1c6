// SPDX-License-Identifier: Apache-2.0
//
// Steps that a pipeline begins while others run: how it counts them, and what becomes of them.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/rethrow.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/started_step.hpp>
#include <zbpp/runtime/step_result.hpp>

#include <cstdint>
#include <exception>

namespace zbpp {

template <backend Backend>
template <starts_steps>
started_step<pipeline<Backend>> pipeline<Backend>::step_async() {
  auto const call = calls_.begin("step_async()");
  detail::require(
      agreements_.of(0) == nullptr,
      "step_async() is called where a stage has an optimizer(), or where training_options ask for "
      "accumulation, a loss scale, a learning rate or on_gradients_ready, for which the host waits "
      "in every step; call step()");
  detail::require(
      !shares_losses(),
      "step_async() is called where share_losses is set, for which ranks wait behind every step; "
      "call step()");
  if (started_.under_way() == executor_.steps_at_once()) finish_oldest();
  failures_.clear();
  auto const ticket = started_.next();
  auto const number = state_.steps + started_.under_way();
  auto const turn = turn_of(ticket);
  executor_.start_run(turn);
  evaluations_ = 0;
  started_.take_place(training_->results.size());
  training_->begin(
      executor_,
      {.first = number,
       .turn = turn,
       .stated = {.first = number, .count = 1, .step = number, .at_once = 1}});
  executor_.start(training_->engines, *training_->transport, training_->status, turn);
  if (training_->status.has_failed())
    for (auto& e : training_->engines) e.abandon();
  training_->transport->drain();
  if (training_->status.has_failed()) {
    note_failures(*training_);
    finish_all();  // they were issued before the failure
    report(*training_);
  }
  started_.begin();
  return {*this, ticket, number};
}

template <backend Backend>
void pipeline<Backend>::finish_oldest() {
  if constexpr (starts_steps<Backend>) {
    auto const turn = turn_of(started_.oldest());
    if (!executor_.finish(*training_->transport, turn, failures_)) {
      try {
        report(*training_);
      } catch (...) {
        started_.give_up(std::current_exception());
        throw;
      }
    }
    started_.finish();
    agreements_.count_step(state_);
  }
}

template <backend Backend>
void pipeline<Backend>::finish_all() {
  while (started_.under_way() > 0) finish_oldest();
}

template <backend Backend>
step_result const& pipeline<Backend>::result_of(std::int64_t ticket) {
  auto const call = calls_.begin("get()");
  while (started_.is_under_way(ticket)) finish_oldest();
  started_.check(ticket);
  detail::require(
      started_.has_result(ticket),
      "get() is called when another step has taken the place of the result; call it before step() "
      "or run(), and before as many more steps begin as steps_at_once says");
  return training_->results[turn_of(ticket)];
}

}  // namespace zbpp
