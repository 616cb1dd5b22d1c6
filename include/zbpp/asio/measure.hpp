// SPDX-License-Identifier: Apache-2.0
//
// Measured steps of ranks in several processes: their timelines on one clock, what their stages
// cost, and the problem to plan for. In a grid these are of one of its pipelines, which all
// processes name: `pipeline_ranks(layout, 0, meeting.ranks())` is the one of rank 0.
#pragma once

#include <zbpp/analysis/clock_offsets.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/model/message_record.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/measure.hpp>
#include <zbpp/runtime/step_result.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::asio {

/// Makes the timeline of a step on all ranks, which each measured by a clock of its own: the clocks
/// are set by each other (`align_clocks`), and time counts from the first start. A collective call.
/// @param order  the passes of all ranks, as the plan has them
/// @param own    the measured passes of this rank's process
/// @param among  in a grid, the ranks of the pipeline that is measured
/// @throws error (bad_argument) when a rank did not run its passes in this order, apart from W that
///         ran while it waited; when the plan has another number of ranks; the failure of the run
[[nodiscard]] timeline gather_timeline(
    rendezvous& meeting,
    schedule const& order,
    timeline const& own,
    pipeline_ranks const& among = {});

/// Is a step on all ranks, on the clock of rank 0 and from the first start.
struct gathered_step {
  timeline measured;
  message_record messages;           ///< of all ranks; empty where none were recorded
  std::vector<clock_offset> clocks;  ///< by rank, as the clocks were; empty where none were
  std::vector<rank_update> ranks;    ///< when each was done with the step, as `ended`
};

/// Gathers a step that each rank measured by a clock of its own. Where messages are recorded the
/// clocks are set by them, with a known error; else as `gather_timeline` does. A collective call.
/// @param own    the result of the step in this process
/// @param among  as for `gather_timeline`
/// @throws error (bad_argument) when a rank ran another plan, or only some of them recorded
///         messages, or as `clock_offsets` and `gather_timeline`; the failure of the run
[[nodiscard]] gathered_step gather_step(
    rendezvous& meeting,
    plan const& planned,
    step_result const& own,
    pipeline_ranks const& among = {});

/// Collects the costs of all stages; each rank knows those of its own. A collective call.
/// @param own    of the stages of this rank, in the order of the placement's `stages_of`
/// @param among  as for `gather_timeline`
/// @throws error (bad_argument) when there is another number of them, or of ranks; the failure of
///         the run
[[nodiscard]] std::vector<stage_costs> gather_costs(
    rendezvous& meeting,
    placement const& placement,
    std::span<stage_costs const> own,
    pipeline_ranks const& among = {});

/// Gives all ranks the costs that one of them knows, such as those of layers that it measured. A
/// collective call.
/// @param own   those of the root; what others give does not count
/// @throws error (bad_argument) when the root is no rank; the failure of the run
[[nodiscard]] std::vector<stage_costs> broadcast_costs(
    rendezvous& meeting, std::span<stage_costs const> own, int root = 0);

/// As `zbpp::measure`, with one rank in each process: all of them get the same problem. A
/// collective call.
/// @param among  as for `gather_timeline`
/// @throws error as `zbpp::measure` and `gather_timeline`; the failure of the run
template <class Pipeline>
[[nodiscard]] problem measure(
    rendezvous& meeting,
    Pipeline& pipe,
    measure_options const& options = {},
    pipeline_ranks const& among = {}) {
  auto const most = [&](std::int64_t own) {
    auto steps = own;
    for (auto const& part : meeting.all_gather(wire_writer().put(own).bytes()))
      steps = std::max(steps, wire_reader(part).get<std::int64_t>());
    return steps;
  };
  return zbpp::detail::measure_steps(pipe, options, most, [&](timeline const& own) {
    return gather_timeline(meeting, pipe.planned().schedule(), own, among);
  });
}

}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/measure.ipp>
#endif
