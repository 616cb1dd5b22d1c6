// SPDX-License-Identifier: Apache-2.0
//
// How much memory each rank needs: activations as the costs of its stages say, and what its edges
// hold. Both follow from the order of the program alone, so a real run meets them byte for byte.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace zbpp {

/// States the greatest use of a rank's memory over a step, in bytes.
struct memory_peak {
  bytes activations = 0;      ///< what passes keep for later passes
  bytes edges = 0;            ///< messages: being sent, received, or handed to the next chunk
  bytes total = 0;            ///< both at one time, with static memory and workspace
  std::int64_t position = 0;  ///< index of the instruction during which `total` is reached

  friend bool operator==(memory_peak const&, memory_peak const&) = default;
};

/// Says how many bytes of activations a rank holds while each of its passes runs.
/// @return one number per pass, in the order of the schedule
/// @throws error (bad_argument) when schedule and problem differ in placement or microbatches
[[nodiscard]] rows<bytes> activation_profile(schedule const& schedule, problem const& problem);

/// Says the most bytes of activations that each rank of a schedule holds.
/// @throws error (bad_argument) when schedule and problem differ in placement or microbatches
[[nodiscard]] std::vector<bytes> peak_activations(schedule const& schedule, problem const& problem);

/// Says the greatest memory use of each rank of a program that has no other fault.
///
/// A message counts on its receiver from the receive to the end of the pass that consumes it, and
/// on its sender from the pass that makes it until a later message tells that it was consumed;
/// between two chunks of one rank, from the pass that makes it to the end of the pass that consumes
/// it. Both passes of a pair hold all that they use until both have ended. Between ranks on one GPU
/// of a process the receiver gets the sender's memory, which counts on the sender alone.
/// @param devices  of one process, by rank, as for `cuda::device`; none: no two ranks share one
/// @throws error (bad_argument) when program and problem differ in placement or microbatches, or
///         when there are devices, but not one for each rank
/// @complexity O(instructions)
[[nodiscard]] std::vector<memory_peak> peak_memory(
    program const& program,
    problem const& problem,
    traffic const& messages,
    std::span<int const> devices = {});

/// Says the greatest memory use of each rank of a program that has no other fault.
/// @throws as above
[[nodiscard]] std::vector<memory_peak> peak_memory(
    program const& program, problem const& problem, std::span<int const> devices = {});

/// Says how large the arena of each rank has to be: for its peaks of activations and of edges, and
/// on a GPU that it shares with ranks next to it, for what those may keep of its messages, which
/// they count as their activations.
/// @param code  one that `verify` accepts
/// @param devices  as above
/// @throws as above
/// @complexity O(instructions) and, for messages handed over, O(messages * flows alive together)
[[nodiscard]] std::vector<bytes> arena_sizes(
    program const& code, problem const& problem, std::span<int const> devices = {});

namespace detail {

/// Refuses devices unless there is one for each rank, or none.
/// @throws error (bad_argument)
void require_devices(program const& program, std::span<int const> devices);

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/memory.ipp>
#endif
