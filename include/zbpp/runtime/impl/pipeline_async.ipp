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
      ready().agreements.of(0) == nullptr,
      "step_async() is called where a stage has an optimizer(), or where training_options ask for "
      "accumulation, a loss scale, a learning rate or on_gradients_ready, for which the host waits "
      "in every step; call step()");
  detail::require(
      !shares_losses(),
      "step_async() is called where share_losses is set, for which ranks wait behind every step; "
      "call step()");
  if (started_.under_way() == ready().executor.steps_at_once()) finish_oldest();
  failures_.clear();
  auto const ticket = started_.next();
  auto const number = state_.steps + started_.under_way();
  auto const turn = turn_of(ticket);
  ready().executor.start_run(turn);
  evaluations_ = 0;
  started_.take_place(ready().training->results.size());
  ready().training->begin(
      ready().executor,
      {.first = number,
       .turn = turn,
       .stated = {.first = number, .count = 1, .step = number, .at_once = 1}});
  ready().executor.start(
      ready().training->engines, *ready().training->transport, ready().training->status, turn);
  if (ready().training->status.has_failed())
    for (auto& e : ready().training->engines) e.abandon();
  ready().training->transport->drain();
  if (ready().training->status.has_failed()) {
    note_failures(*ready().training);
    finish_all();  // they were issued before the failure
    report(*ready().training);
  }
  started_.begin();
  return {*this, ticket, number};
}

template <backend Backend>
void pipeline<Backend>::finish_oldest() {
  if constexpr (starts_steps<Backend>) {
    auto const turn = turn_of(started_.oldest());
    if (!ready().executor.finish(*ready().training->transport, turn, failures_)) {
      try {
        report(*ready().training);
      } catch (...) {
        started_.give_up(std::current_exception());
        throw;
      }
    }
    started_.finish();
    ready().agreements.count_step(state_);
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
  return ready().training->results[turn_of(ticket)];
}

}  // namespace zbpp
