// SPDX-License-Identifier: Apache-2.0
//
// What cannot be replayed, because the host has a part in every step of it.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <string>

namespace zbpp::cuda::detail {

/// Refuses settings and plans with which the host has a part in every step.
/// @throws error (bad_argument)
inline void refuse_to_replay(int run_ahead, bool traces, bool synchronizes, plan const& planned) {
  auto const refuse_with = [](bool is_set, char const* what) {
    if (is_set)
      throw error(
          errc::bad_argument,
          std::string("replay is replay::step and ") + what +
              ", which needs the host between passes; leave one of them out");
  };
  refuse_with(traces, "traces is set");
  refuse_with(synchronizes, "synchronizes is set");
  refuse_with(run_ahead > 0, "run_ahead is above 0");
  refuse_with(agrees_on_steps(planned.program()), "ranks agree on optimizer steps");
  refuse_with(exchanges_states(planned.program()), "ranks add the gradients of tied weights");
}

/// @return the setting
/// @throws error (bad_argument) unless it is 1 or more, and 1 where passes are timed
[[nodiscard]] inline int checked_steps_at_once(int steps_at_once, bool traces) {
  zbpp::detail::require(
      steps_at_once >= 1, "steps_at_once is below 1; give a number of steps from 1");
  zbpp::detail::require(
      steps_at_once == 1 || !traces,
      "steps_at_once is above 1 and traces is set, which times one step; leave one of them out");
  return steps_at_once;
}

/// Refuses optimizer steps in which the host has a part.
/// @throws error (bad_argument)
inline void refuse_optimizer(int rank, bool has_optimizer) {
  if (has_optimizer)
    throw error(
        errc::bad_argument,
        "a stage has an optimizer(), or training_options are given that the host follows in every "
        "step; with replay::step let update(ctx) do its work, with its settings in device memory",
        {.rank = rank});
}

}  // namespace zbpp::cuda::detail
