// SPDX-License-Identifier: Apache-2.0
//
// Says when everything happens in several steps that a pipeline runs one after another: passes,
// norms, optimizer steps and validations. Where ranks agree on their steps, each begins the next
// one when it is done with its own part; otherwise all meet after each step.
#pragma once

#include <zbpp/analysis/period.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/timeline.hpp>

namespace zbpp {

/// Holds the times of steps that follow one another, from the start of the first.
struct simulated_steps {
  timeline line;              ///< the passes of all steps
  rows<rank_update> updates;  ///< by rank, one per step; empty rows where ranks agree on nothing
  ticks end = 0;              ///< all is final on every rank
};

/// Simulates steps none of which is amended.
///
/// A norm takes the `norm` of the stages of its rank, and then waits for that of the rank before. A
/// validation waits for that of the rank after, and takes no time itself; an optimizer step takes
/// `optimizer_step`. States travel as long as messages of 64 bytes, gradients of tied weights as
/// long as one of `tied` bytes; adding them up takes no time. Sums over replicas of a rank follow
/// one another beside its passes, each as long as `problem::reduction_time` of its stage; weights
/// that replicas have stepped take `problem::gather_time` after the step of their stage. In the
/// last step, which has no step after it, all ranks wait for the norm.
/// @throws error (refused_program) with what `verify` finds first; (bad_argument) unless `count` is
///         at least 1, when program and problem differ in placement or microbatches, or when the
///         steps take more than 2^62 ns
/// @complexity that of `verify`, and O(count * instructions * ranks) at worst
[[nodiscard]] simulated_steps simulate_steps(
    program const& program, problem const& problem, int count);

/// States what steps take, in ticks.
struct step_times {
  ticks alone = 0;      ///< one step on its own, from its start until all is final
  mean_ticks steady{};  ///< each of many, in the long run

  friend bool operator==(step_times const&, step_times const&) = default;
};

/// Says what one step takes, and what each takes when a pipeline runs many.
///
/// Follows the steps until the ranks stand to each other as they have before. Where that takes more
/// than `period_steps` steps, `steady` is the mean of the second half of those.
/// @throws as `simulate_steps`
[[nodiscard]] step_times times_of_steps(program const& program, problem const& problem);

/// Says the same of a plan.
[[nodiscard]] inline step_times times_of_steps(plan const& planned) {
  return times_of_steps(planned.program(), planned.problem());
}

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/steps.ipp>
#endif
