// SPDX-License-Identifier: Apache-2.0
//
// How the steps of a program begin, and where their results are.
#pragma once

#include <zbpp/analysis/detail/record_places.hpp>
#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/runtime/detail/program_run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace zbpp::detail {

// In an evaluation no message tells what was consumed, so receivers acknowledge where they can.
[[nodiscard]] ZBPP_INLINE traffic messages_of(program const& of, bool acknowledges) {
  return acknowledges ? traffic(of, evaluation_depth(of)) : traffic(of);
}

ZBPP_INLINE program_run::program_run(
    program program_to_run, run_setup const& setup, backend_traits const& traits)
    : code_(std::move(program_to_run)),
      messages_(messages_of(code_, !setup.is_training() && traits.acknowledges)),
      ranks_(setup.executor.ranks().begin(), setup.executor.ranks().end()) {
  if (!setup.is_training()) return;
  check_backend(code_, traits.agrees, traits.repeats_steps);
  if (agrees_on_steps(code_)) agreements_ = setup.agreed;
}

ZBPP_INLINE rank_setup program_run::setup_of(run_setup const& setup, std::size_t here) const {
  auto stages = setup.stages;
  auto const chunks = [&](std::size_t of) {
    return code_.placement().stages_of(ranks_[of]).size();
  };
  for (std::size_t before = 0; before < here; ++before) stages = stages.subspan(chunks(before));
  auto& memory = setup.memory[here];
  bool const is_training = setup.is_training();
  return {
      .rank = ranks_[here],
      .program = code_,
      .messages = messages_,
      .problem = setup.problem,
      .stages = stages.first(chunks(here)),
      .memory = memory,
      .ctx = setup.executor.context_of(ranks_[here], memory.buffers),
      .grid = grid_of(setup.executor, ranks_[here]),
      .on_stall = is_training ? setup.on_stall : stall_options(),
      .agreement = is_training ? setup.agreed->of(here) : nullptr,
      .outputs = setup.outputs};
}

ZBPP_INLINE void program_run::make_places(run_setup const& setup) {
  step_result result;
  for (int rank = 0; rank < code_.ranks(); ++rank) {
    if (std::ranges::find(ranks_, rank) != ranks_.end())
      for (auto const& i : code_.instructions(rank))
        if (i.is_pass()) result.measured.push({i.as_pass(), 0, 0});
    result.measured.end_row();
  }
  result.losses.resize(index(code_.microbatches()));
  std::size_t at_once = 1;
  if (setup.is_training()) {
    if (setup.executor.records_messages())
      result.messages = record_places(code_, messages_, ranks_);
    at_once = index(setup.executor.steps_at_once());
    result.ranks.resize(index(code_.ranks()));
  }
  if (agrees()) {
    at_once = agreements_->results_in_turn();
    states_.resize(at_once);
  }
  results_.assign(at_once, result);
}

ZBPP_INLINE void program_run::begin(steps_to_run const& next) {
  status_.reset();
  steps_ = next;
  start_clocks();
  called_back_ = next.first - 1;
  std::size_t const places = agrees() ? results_.size() : 1;
  for (std::size_t i = 0; i < places; ++i)
    for (double& loss : results_[next.turn + i].losses)
      loss = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t here = 0; here < ranks_.size(); ++here) {
    auto const rank = ranks_[here];
    engine_run run{
        .first = next.first,
        .count = next.count,
        .evaluation = next.evaluation,
        .places_in_turn = places,
        .stated = next.stated};
    for (std::size_t i = 0; i < places; ++i) {
      auto& result = results_[next.turn + i];
      run.places[i] = {.losses = result.losses, .trace = result.measured[rank]};
      // A callback comes while other ranks are at their optimizer steps.
      if (!result.ranks.empty() && (!agrees() || !next.on_step))
        run.places[i].ended = &result.ranks[index(rank)].ended;
      if (agrees()) run.places[i].update = &result.ranks[index(rank)];
      if (result.messages.size() > 0) run.places[i].messages = &result.messages;
    }
    if (agrees()) {
      agreements_->of(here)->begin_run();
      if (here == 0) run.listener = this;
    }
    begin_engine(here, run);
  }
}

ZBPP_INLINE void program_run::on_decided(std::int64_t step) {
  auto const& part = *agreements_->of(0);
  result_of(step).update = part.report();
  states_[index(step - steps_.first) % states_.size()] = part.state();
  call_back_until(part.last_over());
}

// The first rank of the process is the last to learn a verdict, and no rank begins the step after
// next before the first one has gone on; so this step's places are nobody else's now. Without a
// verdict it knows at the end of a step that all others have ended the one before: it has used what
// their F gave. One more place is then in use.
ZBPP_INLINE void program_run::call_back_until(std::int64_t step) {
  while (called_back_ < step) {
    auto& result = result_of(++called_back_);
    auto& part = *agreements_->of(0);
    if (steps_.on_step) part.request(steps_.on_step(result));
    bool const is_last = called_back_ + 1 == steps_.first + steps_.count;
    if (!is_last && part.next() == after_step::go_on)
      for (double& loss : result.losses) loss = std::numeric_limits<double>::quiet_NaN();
  }
}

ZBPP_INLINE void program_run::note_failures(std::vector<failure>& failures) const {
  for (std::size_t here = 0; here < ranks_.size(); ++here)
    if (failure_of(here).exception) failures.push_back(failure_of(here));
  // The subrange that std::ranges gives does not compile with clang 14.
  std::stable_partition(failures.begin(), failures.end(), [&](failure const& f) {
    return f.location.rank == status_.first();
  });
}

}  // namespace zbpp::detail
