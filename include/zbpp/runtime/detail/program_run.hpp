// SPDX-License-Identifier: Apache-2.0
//
// What a pipeline has for each of its programs, to train or evaluate: engines, transport, results.
#pragma once

#include <zbpp/analysis/detail/record_places.hpp>
#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/callback.hpp>
#include <zbpp/runtime/detail/pipeline_setup.hpp>
#include <zbpp/runtime/detail/run_terms.hpp>
#include <zbpp/runtime/detail/step_agreements.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/engine_run.hpp>
#include <zbpp/runtime/evaluation.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/run_options.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/started_step.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>
#include <zbpp/runtime/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Holds a program and what runs it.
template <backend Backend>
struct program_run final : step_listener {
  using transport_type = typename Backend::transport_type;
  using executor_type = typename Backend::executor;
  using engine_type = engine<transport_type, typename Backend::pass_observer>;

  /// Gets ready for a verified program. What the references name must outlive it.
  /// @param stages  of the ranks of this process, rank after rank
  /// @param memory  of these ranks
  /// @param on_stall  of training
  /// @param outputs   of an evaluation; null in training
  program_run(
      executor_type& executor,
      problem const& problem,
      program program_to_run,
      std::span<stage_ref const> stages,
      std::span<rank_memory> memory,
      stall_options const& on_stall,
      step_agreements& agreed,
      callback<evaluation_output> const* outputs);

  /// Says which steps come next.
  struct steps_to_run {
    std::int64_t first = 0;
    std::int64_t count = 1;
    std::int64_t evaluation = 0;
    callback<step_result, after_step> on_step{};  ///< where ranks agree
    std::size_t turn = 0;    ///< of a step among those at once; where ranks agree there are none
    run_statement stated{};  ///< what ranks compare of them
  };

  /// Gets places and engines ready for steps to come.
  void begin(executor_type& executor, steps_to_run const& next);
  void on_decided(std::int64_t step) override;
  /// Calls back for steps that no rank is in any more, up to one of them.
  void call_back_until(std::int64_t step);
  /// @return where the result of a step is
  [[nodiscard]] step_result& result_of(std::int64_t step) {
    return results[index(step - steps.first) % results.size()];
  }
  /// @return that of the step that ran last, where none are at once
  [[nodiscard]] step_result& last_result() {
    return agreements == nullptr ? results.front()
                                 : result_of(agreements->of(0)->state().steps - 1);
  }
  /// @return the state after the step that is called back for
  [[nodiscard]] training_state const& state_of_callback() const noexcept {
    return states[index(called_back - steps.first) % states.size()];
  }

  // In an evaluation no message tells what was consumed, so receivers acknowledge where they can.
  [[nodiscard]] static traffic messages_of(program const& of, bool is_training) {
    bool const acknowledges = !is_training && acknowledging_transport<transport_type>;
    return acknowledges ? traffic(of, evaluation_depth(of)) : traffic(of);
  }

  program code;
  traffic messages;
  std::unique_ptr<transport_type> transport;
  step_status status;
  // Of steps in turn: where ranks agree they are one step apart at most; else of those at once.
  std::vector<step_result> results;
  std::vector<training_state> states;  // after these steps, where ranks agree
  std::int64_t called_back = -1;       // the last step with a callback, or the one that has it now
  std::vector<engine_type> engines;
  step_agreements const* agreements = nullptr;  // null where ranks agree on nothing
  steps_to_run steps;
};

template <backend Backend>
program_run<Backend>::program_run(
    executor_type& executor,
    problem const& problem,
    program program_to_run,
    std::span<stage_ref const> stages,
    std::span<rank_memory> memory,
    stall_options const& on_stall,
    step_agreements& agreed,
    callback<evaluation_output> const* outputs)
    : code(std::move(program_to_run)),
      messages(messages_of(code, outputs == nullptr)),
      transport(executor.make_transport(code, messages, problem)) {
  auto const here = executor.ranks();
  bool const is_training = outputs == nullptr;
  if (is_training) {
    check_backend(code, agreeing_transport<transport_type>, multi_step_transport<transport_type>);
    if (agrees_on_steps(code)) agreements = &agreed;
  }
  step_result result;
  engines.reserve(here.size());
  for (int rank = 0; rank < code.ranks(); ++rank) {
    if (engines.size() < here.size() && here[engines.size()] == rank) {
      auto& usage = memory[engines.size()];
      auto const chunks = code.placement().stages_of(rank).size();
      transport->bind(rank, usage.buffers, executor.wakeup_of(rank));
      engines.emplace_back(
          rank_setup{
              .rank = rank,
              .program = code,
              .messages = messages,
              .problem = problem,
              .stages = stages.first(chunks),
              .memory = usage,
              .ctx = executor.context_of(rank, usage.buffers),
              .grid = grid_of<Backend>(executor, rank),
              .on_stall = is_training ? on_stall : stall_options(),
              .agreement = is_training ? agreed.of(engines.size()) : nullptr,
              .outputs = outputs},
          *transport,
          status);
      stages = stages.subspan(chunks);
      for (auto const& i : code.instructions(rank))
        if (i.is_pass()) result.measured.push({i.as_pass(), 0, 0});
    }
    result.measured.end_row();
  }
  result.losses.resize(index(code.microbatches()));
  if constexpr (records_messages<Backend>)
    if (is_training && executor.records_messages())
      result.messages = record_places(code, messages, here);
  std::size_t at_once = 1;
  if constexpr (starts_steps<Backend>)
    if (is_training) at_once = index(executor.steps_at_once());
  if (is_training) result.ranks.resize(index(code.ranks()));
  if (agreements != nullptr) {
    at_once = agreed.results_in_turn();
    states.resize(at_once);
  }
  results.assign(at_once, result);
  executor.connect(*transport);
}

template <backend Backend>
void program_run<Backend>::begin(executor_type& executor, steps_to_run const& next) {
  status.reset();
  steps = next;
  called_back = next.first - 1;
  std::size_t const places = agreements == nullptr ? 1 : results.size();
  for (std::size_t i = 0; i < places; ++i)
    for (double& loss : results[next.turn + i].losses)
      loss = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t here = 0; here < engines.size(); ++here) {
    auto& e = engines[here];
    engine_run run{
        .first = next.first,
        .count = next.count,
        .evaluation = next.evaluation,
        .places_in_turn = places,
        .stated = next.stated};
    for (std::size_t i = 0; i < places; ++i) {
      auto& result = results[next.turn + i];
      run.places[i] = {.losses = result.losses, .trace = result.measured[e.rank()]};
      // A callback comes while other ranks are at their optimizer steps.
      if (!result.ranks.empty() && (agreements == nullptr || !next.on_step))
        run.places[i].ended = &result.ranks[index(e.rank())].ended;
      if (agreements != nullptr) run.places[i].update = &result.ranks[index(e.rank())];
      if (result.messages.size() > 0) run.places[i].messages = &result.messages;
    }
    if (agreements != nullptr) {
      agreements->of(here)->begin_run();
      if (here == 0) run.listener = this;
    }
    e.begin(run, executor.observer_of(e.rank()));
  }
}

template <backend Backend>
void program_run<Backend>::on_decided(std::int64_t step) {
  auto const& part = *agreements->of(0);
  result_of(step).update = part.report();
  states[index(step - steps.first) % states.size()] = part.state();
  call_back_until(part.last_over());
}

// The first rank of the process is the last to learn a verdict, and no rank begins the step after
// next before the first one has gone on; so this step's places are nobody else's now. Without a
// verdict it knows at the end of a step that all others have ended the one before: it has used what
// their F gave. One more place is then in use.
template <backend Backend>
void program_run<Backend>::call_back_until(std::int64_t step) {
  while (called_back < step) {
    auto& result = result_of(++called_back);
    auto& part = *agreements->of(0);
    if (steps.on_step) part.request(steps.on_step(result));
    bool const is_last = called_back + 1 == steps.first + steps.count;
    if (!is_last && part.next() == after_step::go_on)
      for (double& loss : result.losses) loss = std::numeric_limits<double>::quiet_NaN();
  }
}

}  // namespace zbpp::detail
