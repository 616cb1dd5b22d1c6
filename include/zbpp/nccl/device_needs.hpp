// SPDX-License-Identifier: Apache-2.0
//
// What a plan needs of the GPUs that `nccl::ranks` runs it on, one for each rank: hardware queues,
// streams, events and memory, known without a GPU. It needs nothing of CUDA and NCCL.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/hardware_queues.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/cuda/channel_needs.hpp>
#include <zbpp/cuda/device_needs.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/nccl/detail/channel_plan.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace zbpp::nccl {

/// Counts the streams of each rank's device: one for passes, a second one for pairs, for each
/// communicator one for messages or sums and two of NCCL's own, and one more of NCCL with any
/// communicator. Idle ones count, as they may take a queue.
/// @source NCCL, commAlloc in src/init.cc and ncclCudaContextTrack in src/misc/strongstream.cc
[[nodiscard]] inline std::vector<int> streams_of_ranks(
    program const& code, channel_layout layout = channel_layout::one_per_directed_pair) {
  std::vector<int> counts;
  auto const made = detail::map_communicators(code.placement(), layout);
  auto const of_sums = reduces_gradients(code) ? 1 : 0;
  for (int rank = 0; rank < code.ranks(); ++rank)
    counts.push_back(detail::streams_of_rank(code, rank, made.count_of(rank) + of_sums));
  return counts;
}

/// Says how many hardware queues the device of each rank needs: one where all ranks have their
/// transfers in one order, as with `one_per_rank`, else one for each stream. NCCL records an event
/// after the kernel of a group of calls, and streams that share a queue then wait for its message.
/// @param code    one that `verify` accepts for `layout`
/// @param layout  of the communicators; `one_per_rank` when the caller's is adopted
[[nodiscard]] inline hardware_queue_need hardware_queues(
    program const& code, channel_layout layout = channel_layout::one_per_directed_pair) {
  return zbpp::hardware_queues(code, streams_of_ranks(code, layout));
}

/// Says what the GPU of each rank has to have for a program that `nccl::ranks` runs with default
/// settings.
///
/// NCCL runs the calls on one communicator one after another, so each has at most one message that
/// waits: a receive for its sender, or a large message for its receiver.
/// @param code  one that `verify` accepts; with one buffer for each edge
/// @return one for each rank; `device` is its number
/// @throws error (bad_argument) when program and problem differ in placement or microbatches
/// @complexity O(instructions + messages * ranks)
[[nodiscard]] inline std::vector<cuda::device_needs> device_needs_of(
    program const& code, problem const& problem) {
  zbpp::detail::require_fit(code, problem);
  traffic const messages(code);
  std::vector const filling(messages.channels().size(), cuda::slot_filling::by_receives);
  auto const made =
      detail::map_communicators(messages.channels(), channel_layout::one_per_directed_pair);
  auto const of_sums = reduces_gradients(code) ? 1 : 0;
  auto const slots = cuda::detail::peak_slots(code, problem, messages, filling);
  auto const streams = streams_of_ranks(code);
  auto const queues = zbpp::hardware_queues(code, streams);
  std::vector<cuda::device_needs> result;
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const at = zbpp::detail::index(rank);
    auto const communicators = made.count_of(rank) + of_sums;
    auto const passes = std::ranges::count_if(
        code.instructions(rank), [](instruction const& one) { return one.is_pass(); });
    result.push_back(
        {.device = rank,
         .ranks = {rank},
         .streams = streams[at],
         .hardware_queues = queues.of_rank[at],
         // At the end of a run, around passes, at both ends of a pair, two for each communicator,
         // and those around sums.
         .events = 1 + 2 * static_cast<int>(passes) +
                   (zbpp::detail::has_pairs(code.instructions(rank)) ? 2 : 0) + 2 * communicators +
                   detail::events_of_sums(code, rank),
         .waiting_ctas = communicators,
         .slots = slots[at]});
  }
  std::vector<cuda::message_shape> const any;
  for (auto const& channel : cuda::needs_of(code, messages, any, filling)) {
    ++result[zbpp::detail::index(channel.ends.from)].events;
    result[zbpp::detail::index(channel.ends.to)].events += 2 * static_cast<int>(channel.slots());
  }
  return result;
}

namespace detail {

/// Refuses a program that can deadlock on the hardware queues that the device of a rank has.
/// @param count_of_streams  on this device
/// @param rank_in_run       as people know the rank
/// @throws error (refused_program)
inline void check_hardware_queues(
    program const& code, int rank, int count_of_streams, int rank_in_run) {
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
  throw error(errc::refused_program, cycle.location) +
      "the program can deadlock where streams share a hardware queue, and rank " + rank_in_run +
      " has " + count + " streams and " + there + " queues" + cure + cycle.text;
}

/// Refuses a setting with which messages and sums that wait can hold all multiprocessors of a rank,
/// so that no pass is left that could end the wait.
/// @param communicators  of the rank
/// @param rank           of the run
/// @param ctas           thread blocks that each of them may use
/// @param sm_count       those that its passes have
/// @throws error (bad_argument)
inline void check_multiprocessors(int communicators, int rank, int ctas, int sm_count) {
  if (communicators == 0) return;
  auto const most = (sm_count - 1) / communicators;
  if (ctas <= most) return;
  auto const cure = most > 0
                        ? "set ranks_settings::most_ctas to " + std::to_string(most) + " or less"
                        : "give them more than " + std::to_string(communicators);
  throw error(errc::bad_argument, {.rank = rank}) + "messages may hold " + ctas +
      " multiprocessors for each of " + communicators +
      " communicators while they wait, and the passes of rank " + rank + " have " + sm_count +
      " in all; " + cure;
}

}  // namespace detail
}  // namespace zbpp::nccl
