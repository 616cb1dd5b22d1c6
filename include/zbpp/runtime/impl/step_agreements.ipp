// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a process get their parts in optimizer steps.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/detail/step_agreements.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

ZBPP_INLINE void check_backend(program const& program, bool agrees, bool validates) {
  auto const refuse = [](char const* text) { throw error(errc::bad_argument, text); };
  if (!agrees && agrees_on_steps(program))
    refuse("on this backend ranks cannot agree on optimizer steps; lower the plan with "
           "step_kind::unchecked");
  if (!agrees && exchanges_states(program))
    refuse("on this backend ranks cannot sum the gradients of tied weights; lower the plan with "
           "step_kind::none and sum them after each step");
  if (!validates && validates_step_before(program))
    refuse("on this backend ranks begin no step before the last one is final; lower the plan with "
           "step_kind::synchronous");
}

[[nodiscard]] ZBPP_INLINE bool is_power_of_two(double scale) {
  int exponent = 0;
  return std::isfinite(scale) && std::frexp(scale, &exponent) == 0.5;
}

ZBPP_INLINE void check(training_state const& state) {
  require(
      state.updates >= 0 && state.finite_steps >= 0 && state.accumulated >= 0 &&
          state.unagreed >= 0 && state.steps >= state.accumulated,
      "a training_state counts: none of its numbers is below 0, and no more steps are accumulated "
      "than were run");
  require(
      state.loss_scale == 0 || is_power_of_two(state.loss_scale),
      "the loss scale of a training_state is a power of two, or 0 for the initial one");
}

/// @throws error (bad_argument) when options contradict each other
ZBPP_INLINE void check(training_options const& options) {
  auto const& scaling = options.scaling;
  require(options.clip >= 0 && std::isfinite(options.clip), "clip is a number from 0");
  require(options.accumulate >= 1, "accumulate counts steps; it is at least 1");
  require(
      is_power_of_two(scaling.initial) && is_power_of_two(scaling.smallest) &&
          is_power_of_two(scaling.largest),
      "loss scales are powers of two");
  require(
      scaling.smallest <= scaling.initial && scaling.initial <= scaling.largest,
      "the initial loss scale lies between the smallest and the largest");
  require(scaling.growth_interval >= 0, "growth_interval counts steps; it is at least 0");
  require(
      options.window.steps >= 0 && options.window.steps <= 64,
      "the window of validations has 0 to 64 steps");
  require(
      options.window.most_amended >= 0,
      "most_amended of the window of validations counts steps; it is at least 0");
  auto const& [every, share] = options.agreement;
  require(
      every >= 1, "every of the interval of agreement counts optimizer steps; it is at least 1");
  require(
      share > 0 && share <= 1,
      "share of the interval of agreement is a part of clip, above 0 and at most 1");
  require(
      every == 1 || options.clip > 0,
      "every of the interval of agreement is above 1 and clip is 0, so no norm is far below; set "
      "clip, or leave every at 1");
  agreement_interval const usual;
  require(
      every > 1 || share == usual.share,
      "share of the interval of agreement is given and every is 1, so ranks agree on every step; "
      "set every, or leave share alone");
  require(static_cast<bool>(options.learning_rate), "learning_rate is empty; give a function");
  auto const& [runs_w, overrun] = options.on_stall;
  require(overrun >= 0 && std::isfinite(overrun), "overrun of on_stall is a share of a W, from 0");
  require(
      runs_w || overrun == 0,
      "overrun of on_stall is given and runs_w is false, so no W moves; set runs_w, or leave "
      "overrun at 0");
}

/// @throws error (bad_argument) unless a stage has the tied weights that its problem states
ZBPP_INLINE void check_tied(int stage, bytes stated, bool has_update, optimizer const* given) {
  auto const weights = given == nullptr ? 0 : given->tied_weights();
  auto const layers = given == nullptr ? 0 : tied_layers(*given);
  auto const found = weights * static_cast<bytes>(sizeof(float));
  if ((weights > 0) != (layers > 0))
    throw error(errc::bad_argument, {.stage = stage}) + "its optimizer says that " + layers +
        " layers are tied, with " + weights + " weights each; give both or none";
  if (found == stated) return;
  if (has_update)
    throw error(errc::bad_argument, {.stage = stage}) +
        "it has tied weights, and update(), which sees no gradients of others; give it optimizer() "
        "instead";
  throw error(errc::bad_argument, {.stage = stage}) + "its optimizer has " + found +
      " bytes of tied gradients, and its problem states " + stated + "; give both the same";
}

/// @return whether the host has a part in optimizer steps by what they ask for
[[nodiscard]] ZBPP_INLINE bool asks_for_more(training_options const& options) {
  return options.accumulate > 1 || options.on_gradients_ready || options.scaling.initial != 1 ||
         has_learning_rate(options);
}

/// Refuses what a program whose ranks do not agree cannot give.
/// @throws error (bad_argument)
ZBPP_INLINE void check_alone(training_options const& options, bool steps) {
  if (options.clip > 0 || options.scaling.growth_interval > 0)
    throw error(errc::bad_argument) +
        "clipping and dynamic loss scaling need ranks that agree; lower the plan with "
        "step_kind::synchronous or post_validated";
  loss_scaling const usual;
  bool const bounds_initial =
      options.scaling.initial < usual.smallest || options.scaling.initial > usual.largest;
  if (!bounds_initial &&
      (options.scaling.smallest != usual.smallest || options.scaling.largest != usual.largest))
    throw error(errc::bad_argument) +
        "a smallest or largest loss scale is given, and without ranks that agree the scale stays "
        "what it is at first; lower the plan with step_kind::synchronous or post_validated";
  validation_window const whole;
  if (options.window.steps != whole.steps || options.window.most_amended != whole.most_amended)
    throw error(errc::bad_argument) +
        "a window of validations is given, and no step of the plan is validated afterwards; lower "
        "it with step_kind::post_validated";
  if (steps) return;
  if (has_learning_rate(options))
    throw error(errc::bad_argument) +
        "learning_rate is given, and the plan has no optimizer steps; lower it with a step_kind "
        "other than none, or leave the rate to what steps between step() and step()";
  if (options.accumulate > 1 && !options.on_gradients_ready)
    throw error(errc::bad_argument) +
        "accumulate is above 1, and the plan has no optimizer steps; lower it with a step_kind "
        "other than none, or step after as many calls of step()";
}

/// Refuses a stage that cannot step as the program and the options say.
/// @throws error (bad_argument)
ZBPP_INLINE void check_update(
    int stage, stage_ref const& given, bool agrees, training_options const& options) {
  if (!given.has_update()) return;
  if (agrees)
    throw error(errc::bad_argument, {.stage = stage}) +
        "it has update(), which knows nothing of other ranks; give it optimizer() instead";
  if (has_learning_rate(options) && !given.takes_settings())
    throw error(errc::bad_argument, {.stage = stage}) +
        "learning_rate is given, and its update(ctx) takes none; let it take the settings, too: "
        "update(zbpp::step_settings const&, zbpp::pass_context)";
}

ZBPP_INLINE step_agreements::step_agreements(
    program const& program,
    problem const& problem,
    std::span<int const> ranks,
    std::span<stage_ref const> stages,
    training_options const& options) {
  check(options);
  agrees_ = agrees_on_steps(program);
  auto const tied = tied_stages(program);
  auto const has = [&](auto const& property) {
    for (auto const& i : program.instructions().all())
      if (property(i)) return true;
    return false;
  };
  steps_ = has([](instruction const& i) { return i.is_step(); });
  if ((steps_ || has([](instruction const& i) { return i.is_of_tied(); })) &&
      tied != problem.tied_stages())
    throw error(errc::bad_argument) +
        "the program has other tied stages than the problem; lower its schedule with "
        "lower_options::tied = problem.tied_stages()";
  if (!agrees_) check_alone(options, steps_);
  may_not_agree_ = options.agreement.every > 1;
  if (may_not_agree_ && !tied.empty())
    throw error(errc::bad_argument) + "every of the interval of agreement is above 1 and weights "
                                      "are tied, which step alike on all ranks; leave every at 1";
  auto const at_once = steps_at_once(program);
  bool is_host_needed = agrees_ || reduces_gradients(program) || asks_for_more(options);
  std::vector<std::vector<step_agreement::stage_optimizer>> chunks;  // by rank
  for (int rank : ranks) {
    auto& own = chunks.emplace_back();
    for (int s : program.placement().stages_of(rank)) {
      auto const& stage = stages.front();
      check_update(s, stage, agrees_, options);
      own.push_back(
          {.stage = s,
           .optimizer = stage.optimizer(),
           .counts_tied = tied.empty() || s == tied.front(),
           .steps_at_once = at_once[index(s)]});
      auto const* const given = own.back().optimizer;
      bool const ties = given != nullptr && (given->tied_weights() > 0 || tied_layers(*given) > 0);
      if (!tied.empty() || ties) check_tied(s, problem.costs(s).tied, stage.has_update(), given);
      is_host_needed = is_host_needed || given != nullptr || stage.takes_settings();
      stages = stages.subspan(1);
    }
  }
  parts_.resize(chunks.size());
  if (!is_host_needed) return;
  state_map const links(program);
  auto const validates = [&](int rank) {
    using enum step_agreement::validation;
    if (validates_step_before(program)) return step_before;
    if (validates_step_before(program, rank)) return after_others;
    return validates_step_before(program, 0) ? own_step_behind_others : own_step;
  };
  auto const tells_next_step = [&](int rank) {
    return rank > 0 && !validates_step_before(program, rank) &&
           validates_step_before(program, rank - 1);
  };
  for (std::size_t here = 0; here < parts_.size(); ++here)
    parts_[here] = std::make_unique<step_agreement>(
        ranks[here],
        links,
        validates(ranks[here]),
        tells_next_step(ranks[here]),
        std::move(chunks[here]),
        options,
        training_state{});
}

ZBPP_INLINE void step_agreements::count_step(training_state& state) const {
  if (parts_.front() != nullptr) {
    state = parts_.front()->state();
    return;
  }
  ++state.steps;
  if (steps_) ++state.updates;
  state.accumulated = 0;
}

ZBPP_INLINE void step_agreements::resume(training_state const& state) {
  for (auto const& part : parts_)
    if (part != nullptr) part->resume(state);
}

ZBPP_INLINE void step_agreements::settle(
    std::function<void(std::size_t, std::function<void(pass_context)> const&)> const& run) {
  if (!agrees_) {
    for (auto const& part : parts_)
      if (part != nullptr) part->count_as_not_run();
    return;
  }
  for (std::size_t here = 0; here < parts_.size(); ++here) {
    auto& part = parts_[here];
    if (part == nullptr) continue;
    step_decision const* known = nullptr;
    for (auto const& other : parts_)
      if (other != nullptr && known == nullptr) known = other->ruling_on(part->state().steps);
    try {
      run(here, [&](pass_context ctx) { part->settle(known, ctx); });
    } catch (...) {
      // A device that cannot continue takes nothing back; the failure of the step says why.
      part->forget_step();
    }
  }
  if (!may_not_agree_) return;
  auto const first =
      (*std::min_element(parts_.begin(), parts_.end(), [](auto const& a, auto const& b) {
        return a->state().steps < b->state().steps;
      }))->state();
  for (auto const& part : parts_)
    if (part->state().steps > first.steps) part->resume(first);
}

}  // namespace zbpp::detail
