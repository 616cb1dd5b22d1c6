// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a process get their parts in optimizer steps.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/detail/step_agreements.hpp>

#include <algorithm>
#include <cmath>
#include <string>
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

/// @throws error (bad_argument) when options contradict each other
ZBPP_INLINE void check(training_options const& options) {
  auto const is_power_of_two = [](double scale) {
    int exponent = 0;
    return std::isfinite(scale) && std::frexp(scale, &exponent) == 0.5;
  };
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
  require(static_cast<bool>(options.learning_rate), "learning_rate is empty; give a function");
}

/// @throws error (bad_argument) unless a stage has the tied weights that its problem states
ZBPP_INLINE void check_tied(int stage, bytes stated, bool has_update, optimizer_ref const& given) {
  auto const weights = given.tied_weights();
  auto const found = weights * static_cast<bytes>(sizeof(float));
  if ((weights > 0) != (given.tied_layers() > 0))
    throw error(
        errc::bad_argument,
        "its optimizer says that " + std::to_string(given.tied_layers()) +
            " layers are tied, with " + std::to_string(weights) +
            " weights each; give both or none",
        {.stage = stage});
  if (found == stated) return;
  auto const text =
      has_update ? "it has tied weights, and update(), which sees no gradients of others; give it "
                   "optimizer() instead"
                 : "its optimizer has " + std::to_string(found) +
                       " bytes of tied gradients, and its problem states " +
                       std::to_string(stated) + "; give both the same";
  throw error(errc::bad_argument, text, {.stage = stage});
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
  auto const steps = std::ranges::any_of(program.instructions().all(), [](instruction const& i) {
    return i.kind == instruction_kind::optimizer_step || i.is_of_tied();
  });
  if (steps && tied != problem.tied_stages())
    throw error(
        errc::bad_argument,
        "the program has other tied stages than the problem; lower its schedule with "
        "lower_options::tied = problem.tied_stages()");
  state_map const links(program);
  if (!agrees_ && (options.clip > 0 || options.scaling.growth_interval > 0))
    throw error(
        errc::bad_argument,
        "clipping and dynamic loss scaling need ranks that agree; lower the plan with "
        "step_kind::synchronous or post_validated");
  for (int rank : ranks) {
    std::vector<step_agreement::stage_optimizer> own;
    bool has_optimizer = false;
    for (int s : program.placement().stages_of(rank)) {
      if (agrees_ && stages.front().has_update())
        throw error(
            errc::bad_argument,
            "it has update(), which knows nothing of other ranks; give it optimizer() instead",
            {.stage = s});
      own.push_back(
          {.stage = s,
           .optimizer = stages.front().optimizer(),
           .counts_tied = tied.empty() || s == tied.front()});
      auto const& given = own.back().optimizer;
      if (!tied.empty() || given.tied_weights() > 0 || given.tied_layers() > 0)
        check_tied(s, problem.costs(s).tied, stages.front().has_update(), given);
      has_optimizer = has_optimizer || own.back().optimizer;
      stages = stages.subspan(1);
    }
    parts_.push_back(
        agrees_ || has_optimizer ? std::make_unique<step_agreement>(
                                       rank,
                                       links,
                                       validates_step_before(program),
                                       std::move(own),
                                       options,
                                       training_state{})
                                 : nullptr);
  }
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
    step_ruling const* known = nullptr;
    for (auto const& other : parts_)
      if (other != nullptr && known == nullptr) known = other->ruling_on(part->state().steps);
    try {
      run(here, [&](pass_context ctx) { part->settle(known, ctx); });
    } catch (...) {
      // A device that cannot continue takes nothing back; the failure of the step says why.
      part->forget_step();
    }
  }
}

}  // namespace zbpp::detail
