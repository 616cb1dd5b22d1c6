// SPDX-License-Identifier: Apache-2.0
//
// How many hardware queues a device needs so that what a program enqueues cannot deadlock. A
// queue takes the work of its streams in the order in which the host has issued it, so a transfer
// that waits for its other end holds up whatever stands after it, passes included.
#pragma once

#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/model/program.hpp>

#include <span>
#include <vector>

namespace zbpp {

/// Says how many hardware queues the devices of a run need.
struct hardware_queue_need {
  /// By rank: 1 where any number does, however streams map to them; else one for each stream.
  std::vector<int> of_rank;
  /// The transfers that would wait for one another in one queue; empty where one is enough.
  std::vector<diagnostic> reason;

  [[nodiscard]] int most() const noexcept;
};

/// Finds out how many queues a program needs, with a device for each rank. One is enough where all
/// ranks have their transfers in one order: such a program is safe under any mapping of streams to
/// queues. Any other one needs a queue for each stream.
/// @param code     one that `verify` accepts for its layout of channels
/// @param streams  by rank, how many streams its device has
/// @throws error (bad_argument) unless there is a number for each rank, all of them above 0
/// @complexity O(instructions + stages * microbatches)
[[nodiscard]] hardware_queue_need hardware_queues(
    program const& code, std::span<int const> streams);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/hardware_queues.ipp>
#endif
