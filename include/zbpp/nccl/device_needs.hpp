// SPDX-License-Identifier: Apache-2.0
//
// What a plan needs of the GPUs that `nccl::ranks` runs it on, one for each rank, known without a
// GPU. It needs nothing of CUDA and NCCL.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/hardware_queues.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/cuda/device_needs.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/nccl/detail/communicator_map.hpp>
#include <zbpp/nccl/hardware_queues.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zbpp::nccl {

/// Says what the GPU of each rank has to have for a program that `nccl::ranks` runs.
///
/// NCCL runs the calls on one communicator one after another, so each has at most one message that
/// waits: a receive for its sender, or a large message for its receiver.
/// @param code       one that `verify` accepts for `layout`
/// @param layout     of the communicators
/// @param most_ctas  of a message, as in `ranks_settings`
/// @return one for each rank; `device` is its number
/// @throws error (bad_argument) when program and problem differ in placement or microbatches
/// @complexity O(instructions + messages * ranks)
[[nodiscard]] inline std::vector<cuda::device_needs> device_needs_of(
    program const& code,
    problem const& problem,
    channel_layout layout = channel_layout::one_per_directed_pair,
    int most_ctas = 1) {
  zbpp::detail::require_fit(code, problem);
  traffic const messages(code);
  std::vector const filling(messages.channels().size(), cuda::slot_filling::by_receives);
  auto const slots = cuda::detail::peak_slots(code, problem, messages, filling);
  auto const streams = streams_of_ranks(code, layout);
  auto const queues = zbpp::hardware_queues(code, streams);
  auto const made = detail::map_communicators(messages.channels(), code.ranks(), layout);
  std::vector<cuda::device_needs> result;
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const i = zbpp::detail::index(rank);
    auto const communicators = made.count_of(rank);
    auto const passes = std::ranges::count_if(
        code.instructions(rank), [](instruction const& one) { return one.is_pass(); });
    result.push_back(
        {.device = rank,
         .ranks = {rank},
         .streams = streams[i],
         .hardware_queues = queues.of_rank[i],
         // At the end of a run, around passes, at both ends of a pair, and two for each
         // communicator.
         .events = 1 + 2 * static_cast<int>(passes) +
                   (zbpp::detail::has_pairs(code.instructions(rank)) ? 2 : 0) + 2 * communicators,
         .waiting_ctas = most_ctas * communicators,
         .slots = slots[i]});
  }
  std::vector<cuda::message_shape> const any;
  for (auto const& channel : cuda::needs_of(code, messages, any, filling)) {
    ++result[zbpp::detail::index(channel.ends.from)].events;
    result[zbpp::detail::index(channel.ends.to)].events += 2 * static_cast<int>(channel.slots());
  }
  return result;
}

}  // namespace zbpp::nccl
