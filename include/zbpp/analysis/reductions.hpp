// SPDX-License-Identifier: Apache-2.0
//
// What adding gradients up over replicas does to a step: when each sum goes on, how long the step
// takes with them, how short that can be, and an order of the last W that hides most of it.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>

namespace zbpp {

/// Says when the gradients of each stage are added up over the replicas: after its last W or BW,
/// and after the sums that its rank has begun before.
/// @param line  a step of the problem, as `simulate` gives it
/// @return by rank, in the order in which they begin; empty rows where there are no replicas
/// @throws error (bad_argument) when the timeline has stages or ranks that the problem has not
[[nodiscard]] rows<timed_reduction> reductions_of(timeline const& line, problem const& problem);

/// @return the greatest time of a rank from its first start to its last end, sums included
[[nodiscard]] ticks cost_with_reductions(timeline const& line, problem const& problem);

/// Finds a time that `cost_with_reductions` of no schedule with microbatches in order is below: a
/// sum always follows the last pass of a rank, and all sums follow the passes of one stage.
/// @complexity that of `lower_bound`
[[nodiscard]] ticks lower_bound_with_reductions(problem const& problem);

/// Orders the W at the end of each rank's row stage by stage, so that their sums end as early as
/// they can: no pass but these W moves, and of no order of theirs the sums end earlier. W of a
/// stage keep their order, and so gradients their bits. The passes of the step take as long as
/// before. Without replicas nothing moves. On ranks with a memory limit whose stages need different
/// workspaces, W stay where they are.
/// @source Johnson: Optimal two- and three-stage production schedules with setup times included
///         (1954): the W of a stage are its time on the first machine, its sum that on the second
/// @throws error (bad_argument) when the schedule is of another problem
[[nodiscard]] schedule end_stages_in_turn(schedule const& schedule, problem const& problem);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/reductions.ipp>
#endif
