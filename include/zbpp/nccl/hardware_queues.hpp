// SPDX-License-Identifier: Apache-2.0
//
// How many hardware queues the devices of a run need whose messages travel by NCCL. Every group of
// calls records an event behind its kernel, for a stream of NCCL's own; where others share the
// queue, they wait for the message.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/hardware_queues.hpp>
#include <zbpp/cuda/hardware_queues.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/nccl/detail/communicator_map.hpp>

#include <string>
#include <vector>

namespace zbpp::nccl {

/// @return by rank, how many streams its device has in a run of a program: that of its passes, a
///         second one where it has pairs, for each communicator of the rank one for messages and
///         two that NCCL makes, and one more of NCCL where there is any communicator; those that
///         stay idle may take a queue as well
/// @source NCCL, commAlloc in src/init.cc and ncclCudaContextTrack in src/misc/strongstream.cc
[[nodiscard]] inline std::vector<int> streams_of_ranks(
    program const& code, channel_layout layout = channel_layout::one_per_directed_pair) {
  std::vector<int> counts;
  auto const made = detail::map_communicators(code.placement(), layout);
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const communicators = made.count_of(rank);
    auto const of_passes = zbpp::detail::has_pairs(code.instructions(rank)) ? 2 : 1;
    counts.push_back(of_passes + (communicators == 0 ? 0 : 1 + 3 * communicators));
  }
  return counts;
}

/// @return how many hardware queues the device of each rank needs: one where all ranks have their
///         transfers in one order, as with `lower_options::layout` of `one_per_rank`, else one for
///         each stream
/// @param code    one that `verify` accepts for `layout`
/// @param layout  of the communicators; `one_per_rank` when the caller's is adopted
[[nodiscard]] inline hardware_queue_need hardware_queues(
    program const& code, channel_layout layout = channel_layout::one_per_directed_pair) {
  return zbpp::hardware_queues(code, streams_of_ranks(code, layout));
}

namespace detail {

/// Refuses a program that can stand still on the hardware queues that the device of a rank has.
/// @throws error (refused_program)
inline void check_hardware_queues(program const& code, channel_layout layout, int rank) {
  auto const need = nccl::hardware_queues(code, layout);
  auto const streams = need.of_rank[zbpp::detail::index(rank)];
  auto const there = cuda::device_connections();
  if (streams <= there) return;
  auto const& cycle = need.reason.front();
  auto const count = std::to_string(streams);
  std::string const cure =
      streams > cuda::most_device_connections
          ? "; CUDA has no more than 32, so lower the plan with .layout = "
            "channel_layout::one_per_rank, after which one queue is enough: "
          : "; set CUDA_DEVICE_MAX_CONNECTIONS to " + count +
                " in the environment before the program starts, or lower the plan with .layout = "
                "channel_layout::one_per_rank, after which one queue is enough: ";
  throw error(
      errc::refused_program,
      "the program can stand still where streams share a hardware queue, and rank " +
          std::to_string(rank) + " has " + count + " streams and " + std::to_string(there) +
          " queues" + cure + cycle.text,
      cycle.location);
}

}  // namespace detail
}  // namespace zbpp::nccl
