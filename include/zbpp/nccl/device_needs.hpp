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
#include <zbpp/cuda/replay.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/nccl/detail/channel_plan.hpp>
#include <zbpp/runtime/arena.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace zbpp::nccl {

/// Counts the streams of each rank's device where NCCL carries all: one for passes, a second one
/// for pairs, for each communicator one for messages or sums and two of NCCL's own, and one more of
/// NCCL with any communicator. Idle ones count, as they may take a queue.
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

/// Says how `ranks` runs a program, and on how many hosts.
struct needs_settings {
  channel_layout layout = channel_layout::one_per_directed_pair;  ///< of the communicators
  int most_ctas = 1;                                              ///< of a message
  int sum_ctas = 0;  ///< of a sum over replicas; 0: as many as a message
  cuda::replay replay = cuda::replay::none;
  int steps_at_once = 1;  ///< that `pipeline::step_async` lets be under way
  /// Ranks that are on a host, in the order of their numbers, and whose GPUs reach each other, so
  /// that copies carry messages between them and NCCL the rest. With 1 NCCL carries all.
  int ranks_per_host = 1;
};

/// Says what the GPU of each rank has to have for a program that `nccl::ranks` runs.
///
/// NCCL runs the calls on one communicator one after another, so each has at most one message that
/// waits: a receive for its sender, or a large message for its receiver. Where steps are replayed
/// it carries all messages.
/// @param code  one that `verify` accepts for the layout; with one buffer for each edge
/// @return one for each rank; `device` is its number
/// @throws error (bad_argument) when program and problem differ in placement or microbatches, or
///         `ranks_per_host`, `steps_at_once` or `most_ctas` is below 1, or `sum_ctas` below 0
/// @complexity O(instructions + messages * ranks)
[[nodiscard]] inline std::vector<cuda::device_needs> device_needs_of(
    program const& code, problem const& problem, needs_settings const& settings = {}) {
  zbpp::detail::require_fit(code, problem);
  zbpp::detail::require(
      settings.ranks_per_host >= 1,
      "ranks_per_host is below 1; give the ranks that are on each host");
  zbpp::detail::require(
      settings.steps_at_once >= 1, "steps_at_once is below 1; give a number of steps from 1");
  zbpp::detail::require(
      settings.most_ctas >= 1,
      "most_ctas is below 1; give the thread blocks that a message may use");
  zbpp::detail::require(
      settings.sum_ctas >= 0,
      "sum_ctas is negative; give the thread blocks that a sum may use, or 0");
  auto const limits = detail::limits_of(settings.most_ctas, settings.sum_ctas);
  bool const replays = settings.replay == cuda::replay::step;
  bool const has_order = replays || settings.steps_at_once > 1;
  traffic const messages(code);
  std::vector<cuda::slot_filling> filling;
  for (auto const& c : messages.channels())
    filling.push_back(
        !replays && detail::are_on_one_host(c.from, c.to, settings.ranks_per_host)
            ? cuda::slot_filling::by_sends
            : cuda::slot_filling::by_receives);
  auto const is_copied = [&](int channel) {
    return filling[zbpp::detail::index(channel)] == cuda::slot_filling::by_sends;
  };
  auto const made =
      detail::map_remaining(messages.channels(), code.ranks(), settings.layout, is_copied);
  auto const slots = cuda::detail::peak_slots(code, problem, messages, filling);
  std::vector<cuda::device_needs> result;
  std::vector<int> streams;
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const of_sums = reduces_gradients(code) ? 1 : 0;
    auto const communicators = made.count_of(rank) + of_sums;
    auto const passes = std::ranges::count_if(
        code.instructions(rank), [](instruction const& one) { return one.is_pass(); });
    int senders = 0;
    for (std::size_t c = 0; c < filling.size(); ++c)
      senders += is_copied(static_cast<int>(c)) && messages.channels()[c].from == rank ? 1 : 0;
    streams.push_back(detail::streams_of_rank(code, rank, communicators, senders));
    result.push_back(
        {.device = rank,
         .ranks = {rank},
         // For messages that are captured, and to put steps in order.
         .streams = streams.back() + (replays ? 1 : 0) + (has_order ? 1 : 0),
         // At the end of a run, around passes, at both ends of a pair, two for each communicator,
         // one after the copies of each channel, those around sums, and those that put steps in
         // order: at their begin, their ends, and after each stream of theirs.
         .events =
             1 + 2 * static_cast<int>(passes) * settings.steps_at_once +
             (zbpp::detail::has_pairs(code.instructions(rank)) ? 2 : 0) + 2 * communicators +
             senders + detail::events_of_sums(code, rank) +
             (has_order ? 2 + settings.steps_at_once + communicators + senders + (replays ? 1 : 0)
                        : 0),
         .waiting_ctas = made.most_ctas_of(rank, limits) + limits.of_sum * of_sums,
         .slots = slots[zbpp::detail::index(rank)]});
  }
  auto const queues = zbpp::hardware_queues(code, streams);
  for (auto& each : result) each.hardware_queues = queues.of_rank[zbpp::detail::index(each.device)];
  std::vector<cuda::message_shape> shapes;
  for (int edge = 0; edge + 1 < problem.stages(); ++edge)
    shapes.push_back({problem.costs(edge).edge});
  auto const held = detail::held_messages(code, messages);
  auto const needs = cuda::needs_of(code, messages, shapes, filling, held);
  for (std::size_t c = 0; c < needs.size(); ++c) {
    ++result[zbpp::detail::index(needs[c].ends.from)].events;
    auto& to = result[zbpp::detail::index(needs[c].ends.to)];
    if (is_copied(static_cast<int>(c)))
      to.shared_slots +=
          arena::reserved_for(detail::size_of_slots(held[c], detail::largest_of(needs[c])));
    else
      to.events += 2 * static_cast<int>(needs[c].slots());
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

/// Refuses settings with which messages and sums that wait can hold all multiprocessors of a rank,
/// so that no pass is left that could end the wait.
/// @param made      those of the run
/// @param rank      of the run
/// @param sm_count  those that its passes have
/// @throws error (bad_argument)
inline void check_multiprocessors(
    communicator_map const& made, int rank, cta_limits const& limits, int sm_count) {
  auto const all = made.most_ctas_of(rank, limits);
  if (all == 0 || all < sm_count) return;
  std::string const passes = zbpp::detail::joined(" while they wait, and the passes of rank ") +
                             rank + " have " + sm_count + " in all; ";
  if (made.sums_of(rank) > 0 && limits.of_sum != limits.of_message)
    throw error(errc::bad_argument, {.rank = rank}) + "messages may hold " + (all - limits.of_sum) +
        " multiprocessors and sums over replicas " + limits.of_sum + passes +
        "lower ranks_settings::most_ctas or sum_ctas, so that both together hold fewer";
  auto const communicators = made.count_of(rank);
  auto const most = (sm_count - 1) / communicators;
  auto const cure = most > 0
                        ? "set ranks_settings::most_ctas to " + std::to_string(most) + " or less"
                        : "give them more than " + std::to_string(communicators);
  throw error(errc::bad_argument, {.rank = rank}) + "messages may hold " + limits.of_message +
      " multiprocessors for each of " + communicators + " communicators" + passes + cure;
}

}  // namespace detail
}  // namespace zbpp::nccl
