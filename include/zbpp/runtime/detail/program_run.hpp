// SPDX-License-Identifier: Apache-2.0
//
// What a pipeline has for each program that it runs, training or evaluation: engines, transport
// and results.
#pragma once

#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/callback.hpp>
#include <zbpp/runtime/detail/pipeline_setup.hpp>
#include <zbpp/runtime/detail/step_agreements.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/engine_run.hpp>
#include <zbpp/runtime/evaluation.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/started_step.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/step_result.hpp>
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
  /// @param outputs  of an evaluation; null in training
  program_run(
      executor_type& executor,
      problem const& problem,
      program program_to_run,
      std::span<stage_ref const> stages,
      std::span<rank_memory> memory,
      step_agreements& agreed,
      callback<evaluation_output> const* outputs);

  /// Gets places and engines ready for steps to come.
  /// @param turn  of a step among those at once; where ranks agree there are none
  void begin(
      executor_type& executor,
      std::int64_t first_step,
      std::int64_t step_count,
      callback<step_result> told_of,
      std::size_t turn = 0);
  void on_judged(std::int64_t step) override;
  /// @return where the result of a step is
  [[nodiscard]] step_result& result_of(std::int64_t step) {
    return results[index(step - first) % results.size()];
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
  std::vector<engine_type> engines;
  step_agreements const* agreements = nullptr;  // null where ranks agree on nothing
  std::int64_t first = 0;
  std::int64_t count = 1;
  asked_steps asked{};  // set by who begins
  callback<step_result> told;
};

template <backend Backend>
program_run<Backend>::program_run(
    executor_type& executor,
    problem const& problem,
    program program_to_run,
    std::span<stage_ref const> stages,
    std::span<rank_memory> memory,
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
      auto& mine = memory[engines.size()];
      auto const chunks = code.placement().stages_of(rank).size();
      transport->bind(rank, mine.buffers, executor.wakeup_of(rank));
      engines.emplace_back(
          rank,
          code,
          messages,
          problem,
          stages.first(chunks),
          mine,
          executor.context_of(rank, mine.buffers),
          *transport,
          status,
          is_training ? agreed.of(engines.size()) : nullptr,
          outputs);
      stages = stages.subspan(chunks);
      for (auto const& i : code.instructions(rank))
        if (i.is_pass()) result.measured.push({i.as_pass(), 0, 0});
    }
    result.measured.end_row();
  }
  result.losses.resize(index(code.microbatches()));
  std::size_t at_once = 1;
  if constexpr (starts_steps<Backend>)
    if (is_training) at_once = index(executor.steps_at_once());
  if (agreements != nullptr) {
    result.ranks.resize(index(code.ranks()));
    at_once = 2;
  }
  results.assign(at_once, result);
  executor.connect(*transport);
}

template <backend Backend>
void program_run<Backend>::begin(
    executor_type& executor,
    std::int64_t first_step,
    std::int64_t step_count,
    callback<step_result> told_of,
    std::size_t turn) {
  status.reset();
  first = first_step;
  count = step_count;
  told = told_of;
  for (std::size_t i = 0; i < (agreements == nullptr ? 1 : 2); ++i)
    std::ranges::fill(results[turn + i].losses, std::numeric_limits<double>::quiet_NaN());
  for (auto& e : engines) {
    engine_run run{.first = first, .count = count, .asked = asked};
    for (std::size_t i = 0; i < (agreements == nullptr ? 1 : 2); ++i) {
      auto& result = results[turn + i];
      run.places[i] = {.losses = result.losses, .trace = result.measured[e.rank()]};
      if (agreements != nullptr) run.places[i].update = &result.ranks[index(e.rank())];
    }
    if (agreements != nullptr && &e == &engines.front()) run.listener = this;
    e.begin(run, executor.observer_of(e.rank()));
  }
}

// The first rank of the process is the last to learn a verdict, and no rank begins the step after
// next before the first one has gone on; so this step's places are nobody else's now.
template <backend Backend>
void program_run<Backend>::on_judged(std::int64_t step) {
  auto& result = result_of(step);
  result.update = agreements->of(0)->report();
  if (told) told(result);
  if (step + 1 < first + count)
    std::ranges::fill(result.losses, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace zbpp::detail
