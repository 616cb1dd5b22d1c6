// SPDX-License-Identifier: Apache-2.0
//
// Trainings of the checked model by pipelines in one process, and what happened in them.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/checked_model.hpp>

#include <cstdint>
#include <vector>

namespace zbpp::test::checked {

/// How often each thing happened in a training.
struct happenings {
  int early = 0;     ///< ranks that stepped before they knew the norm
  int amended = 0;   ///< steps
  int skipped = 0;   ///< steps
  int clipped = 0;   ///< steps
  int unagreed = 0;  ///< optimizer steps
  int schedules = 0;

  happenings& operator+=(happenings const& other) {
    early += other.early;
    amended += other.amended;
    skipped += other.skipped;
    clipped += other.clipped;
    unagreed += other.unagreed;
    schedules += other.schedules;
    return *this;
  }
};

struct outcome {
  history given;
  happenings seen;
};

/// Trains in runs, each of which continues from the state of the one before in a new pipeline.
template <class Backend>
outcome train(
    plan const& planned,
    Backend backend,
    model_settings const& settings,
    training_options const& options,
    std::vector<int> const& lengths) {
  outcome result;
  model all(settings);
  training_state state;
  for (int length : lengths) {
    pipeline pipe(planned, backend, all.stages(), options);
    pipe.resume(state);
    pipe.run(length, [&](step_result const& step) {
      auto const& update = step.update;
      CHECK(update.step == static_cast<std::int64_t>(result.given.losses.size()));
      CHECK(pipe.steps() == update.step + 1);
      result.given.add(step);
      for (auto const& rank : step.ranks) result.seen.early += rank.is_early ? 1 : 0;
      result.seen.amended += update.is_amended ? 1 : 0;
      result.seen.skipped += update.is_skipped ? 1 : 0;
      result.seen.clipped += update.coefficient < 1 ? 1 : 0;
      result.seen.unagreed += update.is_update && !update.is_agreed ? 1 : 0;
    });
    state.steps += length;
    CHECK(pipe.state().steps == state.steps);
    state = pipe.state();
  }
  result.given.bits = all.bits();
  return result;
}

}  // namespace zbpp::test::checked
