// SPDX-License-Identifier: Apache-2.0
//
// How many hardware queues each device needs when messages travel by NCCL. Every group of calls
// records an event behind its kernel, for a stream of NCCL's own; streams that share the queue then
// wait for the message, too.
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

namespace detail {

/// @return how many streams the device of a rank has in a run of a program: that of its passes, a
///         second one where it has pairs, for each of its communicators three, and one more where
///         there are any, and one for each channel on which it sends by copies
[[nodiscard]] inline int streams_of_rank(
    program const& code, int rank, int communicators, int copying = 0) noexcept {
  auto const of_passes = zbpp::detail::has_pairs(code.instructions(rank)) ? 2 : 1;
  return of_passes + (communicators == 0 ? 0 : 1 + 3 * communicators) + copying;
}

}  // namespace detail

/// @return by rank, how many streams its device has in a run of a program where NCCL carries all:
///         that of its passes, a second one where it has pairs, for each communicator of the rank
///         one for messages and two that NCCL makes, and one more of NCCL where there is any
///         communicator; those that stay idle may take a queue as well
/// @source NCCL, commAlloc in src/init.cc and ncclCudaContextTrack in src/misc/strongstream.cc
[[nodiscard]] inline std::vector<int> streams_of_ranks(
    program const& code, channel_layout layout = channel_layout::one_per_directed_pair) {
  std::vector<int> counts;
  auto const made = detail::map_communicators(code.placement(), layout);
  for (int rank = 0; rank < code.ranks(); ++rank)
    counts.push_back(detail::streams_of_rank(code, rank, made.count_of(rank)));
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

/// Refuses a program that can deadlock on the hardware queues that the device of a rank has.
/// @param count_of_streams  on this device
/// @throws error (refused_program)
inline void check_hardware_queues(program const& code, int rank, int count_of_streams) {
  std::vector const all(zbpp::detail::index(code.ranks()), count_of_streams);
  auto const need = zbpp::hardware_queues(code, all);
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
      "the program can deadlock where streams share a hardware queue, and rank " +
          std::to_string(rank) + " has " + count + " streams and " + std::to_string(there) +
          " queues" + cure + cycle.text,
      cycle.location);
}

}  // namespace detail
}  // namespace zbpp::nccl
