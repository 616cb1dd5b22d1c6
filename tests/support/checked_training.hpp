// SPDX-License-Identifier: Apache-2.0
//
// Trainings of the checked model by pipelines in one process, and what happened in them.
#pragma once

#include <support/backends.hpp>
#include <support/checked_model.hpp>

namespace zbpp::test::checked {

/// @return ZB-H1 of checked stages on a line of ranks
[[nodiscard]] inline plan line_plan(
    int ranks,
    int microbatches,
    lower_options const& options = {},
    std::vector<int> const& tied = {}) {
  return make_plan(
      zb_h1{}, make_problem(placement::linear(ranks), microbatches, 87, tied), options);
}

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

/// Trains until a pass throws: all stages then have the weights of whole steps, and go on from
/// there, when half-made gradients are gone, with the bits of a training without failure.
/// @param fail   says which pass throws
/// @param total  of the steps, of which the first run is to have six
/// @param all_at_once  without agreement, some stages may have stepped when others fail
/// @return how many steps were run when it failed
template <class Backend, class Fail>
int train_through_failure(
    plan const& planned,
    Backend backend,
    model_settings settings,
    Fail fail,
    int total,
    bool all_at_once = true) {
  settings.stages = planned.problem().stages();
  auto const bits_of_steps = [&](int count) {
    return train_alone(settings, planned.problem().microbatches(), count, {}).bits;
  };
  model all(settings);
  fail(all);
  pipeline pipe(planned, backend, all.stages());
  CHECK_THROWS_WITH(pipe.run(6), Catch::Matchers::EndsWith(": thrown by the test"));
  auto const taken = static_cast<int>(pipe.steps());
  if (!all_at_once) return taken;
  bool const is_whole = all.bits() == bits_of_steps(taken);
  CHECK(is_whole);
  all.skip();
  pipe.run(total - taken);
  bool const goes_on = all.bits() == bits_of_steps(total);
  CHECK(goes_on);
  return taken;
}

/// What a random training is: a plan, what is trained, and how.
struct random_training {
  plan planned;
  model_settings settings;
  training_options options;
  std::string name;
};

/// @param steps  in which faults may be
[[nodiscard]] inline random_training make_random_training(seeded_random& random, int steps) {
  auto const number = [&](int low, int high) {
    return static_cast<int>(random.integer(low, high));
  };
  auto const some = [&](int stages, double chance, auto const& may) {
    std::vector<int> found;
    for (int s = 0; s < stages; ++s)
      if (may(s) && random.chance(chance)) found.push_back(s);
    return found;
  };
  auto const p = number(1, 6);
  auto const m = number(1, 2 * p + 2);
  auto const place = placements_to_run(p)[static_cast<std::size_t>(number(0, 2))];
  bool const is_late = random.chance(0.7);
  bool const may_not_agree = random.chance(0.3);
  // Tied weights step alike on all ranks, so these agree on every step.
  auto const tied = may_not_agree || random.chance(0.7)
                        ? std::vector<int>{}
                        : some(place.stages(), 0.5, [](int s) { return s != 1; });
  auto const at_once = is_late || !tied.empty() || random.chance(0.3)
                           ? std::vector<int>{}
                           : some(place.stages(), 0.6, [](int) { return true; });
  auto const stated = make_problem(place, m, number(0, 200), tied);
  std::vector<any_policy> policies;
  for (auto& policy : grid_policies())
    if (is_supported(policy, stated)) policies.push_back(policy);
  auto const& policy = random.pick<any_policy>(policies);
  model_settings settings{
      .stages = place.stages(),
      .dropout = random.chance(0.5),
      .has_frozen_stage = random.chance(0.25),
      .uses_adamw = random.chance(0.7),
      .undo = random.chance(0.5) ? optim::undo_method::weights : optim::undo_method::copies,
      .loss_weight = random.chance(0.25) ? 20.0F : 1.0F,
      .tied = tied,
      .ties_first_layers = random.chance(0.5),
      .at_once = at_once};
  for (int faults = number(0, 3); faults > 0; --faults)
    settings.faults.push_back(
        {number(0, steps - 1),
         number(0, place.stages() - 1),
         number(0, m - 1),
         random.chance(0.5) ? std::numeric_limits<float>::infinity()
                            : std::numeric_limits<float>::quiet_NaN()});
  std::array clips{1e-2, 1.0, 1.5, 4.0, 9.0};
  training_options options{
      .clip = !may_not_agree && random.chance(0.2) ? 0 : random.pick<double>(clips),
      .accumulate = random.chance(0.25) ? 2 : 1};
  if (is_late) options.window = {.steps = number(0, 20), .most_amended = number(0, 8)};
  if (may_not_agree) options.agreement = {number(2, 7), 0.125 * number(1, 8)};
  if (random.chance(0.3))
    options.scaling = {.initial = 0x1p12, .growth_interval = number(0, 3), .largest = 0x1p18};
  lower_options const lowering{
      .receive_ahead = number(0, 2),
      .step = is_late ? step_kind::post_validated : step_kind::synchronous,
      .at_once = at_once};
  return {
      make_plan(std::string(policy.title()), policy(stated), stated, lowering),
      settings,
      options,
      name_of(policy, stated)};
}

}  // namespace zbpp::test::checked
