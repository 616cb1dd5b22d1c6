// SPDX-License-Identifier: Apache-2.0
#include "searching.hpp"

#include <zbpp/adapt/replanner.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/find_plan.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gpt {
namespace {

/// Is a pipeline that changes its plan, in the form of one that does not.
struct adapting_loop {
  zbpp::pipeline<zbpp::threads>* pipe;
  zbpp::replanner* again;
  zbpp::plan const* first;
  run_record* record;

  template <class Note>
  void run(std::int64_t steps, Note const& note) {
    for (; steps > 0; --steps) {
      again->apply_to(*pipe);
      auto const& result = pipe->step();
      static_cast<void>(again->after(result));
      auto const& planned = pipe->planned();
      auto const& before = record->other_plan ? *record->other_plan : *first;
      if (!(planned.schedule() == before.schedule())) {
        record->last_changed = record->losses.size();
        if (!record->other_plan) record->first_changed = record->last_changed;
        record->other_plan = planned;
      }
      note(result);
    }
  }
  [[nodiscard]] zbpp::training_state state() const { return pipe->state(); }
};

}  // namespace

std::vector<zbpp::any_policy> policies(options const&) { return zbpp::builtin_policies(); }

zbpp::schedule order_of_blocks(
    zbpp::any_policy const& policy,
    zbpp::placement const& where,
    model_config const& model,
    zbpp::problem const& blocks) {
  zbpp::problem const layers(
      {blocks.all_costs().begin(), blocks.all_costs().end()},
      {.ranks = where.ranks(),
       .microbatches = blocks.microbatches(),
       .transfer = blocks.transfer()});
  std::vector<int> first;
  for (int s = 0; s < where.stages(); ++s)
    first.push_back(static_cast<int>(layers_of_stage(model, where.stages(), s).first));
  return find_plan(
             layers,
             {.placement = where,
              .first_layer = first,
              .policy = policy,
              .stage_per_layer = true,
              .seconds = zbpp::search_settings{}.seconds})
      .schedule;
}

run_record run_adapting(
    zbpp::plan const& planned,
    training const& how,
    zbpp::threads const& backend,
    std::vector<chunk_stage>& stages,
    zbpp::training_state const& state,
    saver* save) {
  auto const steps = how.optimizer.steps;
  run_record record{.name = planned.policy(), .first = state.steps, .keeps_times = true};
  run_display display(record, how, steps);
  // Own choice: threads share processors with other programs, and so vary by that much.
  zbpp::replan_settings settings{
      .band = 0.1, .least_gain = 0.05, .least_steps = 30, .moves_stages = true};
  settings.seconds = 0.5;
  zbpp::pipeline pipe{planned, backend, stages, options_of(how.optimizer)};
  zbpp::replanner again(pipe, settings, [&](std::string const& line) { display.note(line); });
  pipe.resume(state);
  adapting_loop loop{&pipe, &again, &planned, &record};
  take_steps(loop, record, display, steps, 1, stages, save);
  conclude(record, stages);
  return record;
}

}  // namespace gpt
