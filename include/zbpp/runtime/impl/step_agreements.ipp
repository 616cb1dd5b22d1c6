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

ZBPP_INLINE void refuse_agreement() {
  throw error(
      errc::bad_argument,
      "on this backend ranks cannot agree on optimizer steps; lower the plan with "
      "step_kind::unchecked");
}

ZBPP_INLINE void refuse_validation() {
  throw error(
      errc::bad_argument,
      "on this backend ranks begin no step before the last one is final; lower the plan with "
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

ZBPP_INLINE step_agreements::step_agreements(
    program const& program,
    std::span<int const> ranks,
    std::span<stage_ref const> stages,
    training_options const& options) {
  check(options);
  bool const is_checked = agrees_on_steps(program);
  if (!is_checked && (options.clip > 0 || options.scaling.growth_interval > 0))
    throw error(
        errc::bad_argument,
        "clipping and dynamic loss scaling need ranks that agree; lower the plan with "
        "step_kind::synchronous or post_validated");
  for (int rank : ranks) {
    std::vector<step_agreement::stage_optimizer> own;
    bool has_optimizer = false;
    for (int s : program.placement().stages_of(rank)) {
      if (is_checked && stages.front().has_update())
        throw error(
            errc::bad_argument,
            "stage " + std::to_string(s) +
                " has update(), which knows nothing of other ranks; give it optimizer() instead",
            {.stage = s});
      own.push_back({s, stages.front().optimizer()});
      has_optimizer = has_optimizer || own.back().optimizer;
      stages = stages.subspan(1);
    }
    parts_.push_back(
        is_checked || has_optimizer ? std::make_unique<step_agreement>(
                                          rank,
                                          program.ranks(),
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
