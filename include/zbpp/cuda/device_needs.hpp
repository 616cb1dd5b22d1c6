// SPDX-License-Identifier: Apache-2.0
//
// What a plan needs of the GPUs that `cuda::device` runs it on, known without a GPU. It needs
// nothing of CUDA; `nccl/device_needs.hpp` has the same for `nccl::ranks`.
#pragma once

#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/cuda/channel_needs.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <vector>

namespace zbpp::cuda {

/// The most hardware queues that CUDA gives a process on a device. In a queue a stream that waits
/// holds up those after it.
/// @source CUDA C++ Programming Guide, CUDA Environment Variables, CUDA_DEVICE_MAX_CONNECTIONS
inline constexpr int most_device_connections = 32;

/// @return how many hardware queues the streams of a device share: CUDA_DEVICE_MAX_CONNECTIONS, as
///         the environment sets it, which CUDA reads once; 8 by default
[[nodiscard]] inline int device_connections() noexcept {
  char const* const stated = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  int const count = stated == nullptr ? 0 : std::atoi(stated);
  return count < 1 ? 8 : std::min(count, most_device_connections);
}

/// Says what a GPU has to have for the ranks that run on it, with default settings of the backend.
/// An evaluation makes the streams and events of its own messages besides.
struct device_needs {
  int device = 0;               ///< its number
  std::vector<int> ranks = {};  ///< that run on it
  int streams = 0;              ///< those of the library and of NCCL
  /// With so many, no stream holds up another (`cuda::device`), no step deadlocks (`nccl::ranks`).
  int hardware_queues = 0;
  int events = 0;  ///< made with the pipeline
  /// Thread blocks of messages that can wait on its multiprocessors at one time, beside passes.
  int waiting_ctas = 0;
  /// Memory of arenas for received messages: the peaks of its ranks together.
  bytes slots = 0;
};

/// Says what each GPU has to have for a program that `cuda::device` runs.
/// @param code     one that `verify` accepts
/// @param devices  by rank; none: all on device 0
/// @return one for each device, by number
/// @throws error (bad_argument) when program and problem differ in placement or microbatches, or
///         when there are devices, but not one for each rank
/// @complexity O(instructions + messages * ranks)
[[nodiscard]] inline std::vector<device_needs> device_needs_of(
    program const& code, problem const& problem, std::span<int const> devices = {});

namespace detail {

/// @param filling  by channel
/// @return by rank, the most bytes of its arena that slots take at one time: each from the receive
///         to the end of the pass that consumes the message
[[nodiscard]] inline std::vector<bytes> peak_slots(
    program const& code,
    problem const& problem,
    traffic const& messages,
    std::span<slot_filling const> filling) {
  std::vector<bytes> peaks;
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const row = code.instructions(rank);
    bytes open = 0;
    bytes most = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto const c = messages.notes(rank)[i].channel;
      if (c == channel_map::none || row[i].is_send()) continue;
      if (filling[zbpp::detail::index(c)] == slot_filling::handed_over) continue;
      if (row[i].is_receive()) {
        open += problem.costs(std::min(row[i].stage, row[i].other_stage())).edge;
        most = std::max(most, open);
      } else {
        bool const is_forward = row[i].kind == instruction_kind::forward;
        open -= problem.costs(is_forward ? row[i].stage - 1 : row[i].stage).edge;
      }
    }
    peaks.push_back(most);
  }
  return peaks;
}

}  // namespace detail

inline std::vector<device_needs> device_needs_of(
    program const& code, problem const& problem, std::span<int const> devices) {
  zbpp::detail::require_fit(code, problem);
  zbpp::detail::require_devices(code, devices);
  std::vector<int> const all_on_one(zbpp::detail::index(code.ranks()), 0);
  if (devices.empty()) devices = all_on_one;
  traffic const messages(code);
  auto const filling = fillings_of(messages, devices);
  auto const slots = detail::peak_slots(code, problem, messages, filling);
  std::vector<device_needs> result;
  auto const needs_on = [&](int rank) -> device_needs& {
    auto const device = devices[zbpp::detail::index(rank)];
    auto at = std::ranges::lower_bound(result, device, {}, &device_needs::device);
    if (at == result.end() || at->device != device)
      at = result.insert(at, {.device = device, .ranks = {}});
    return *at;
  };
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto& needs = needs_on(rank);
    needs.ranks.push_back(rank);
    ++needs.streams;
    ++needs.events;  // at the end of a run
    if (zbpp::detail::has_pairs(code.instructions(rank))) {
      ++needs.streams;
      needs.events += 2;  // in front of a pair and after it
    }
    needs.slots += slots[zbpp::detail::index(rank)];
  }
  std::vector<message_shape> const any;
  for (auto const& channel : needs_of(code, messages, any, filling)) {
    needs_on(channel.ends.from).events += static_cast<int>(channel.places());
    auto& to = needs_on(channel.ends.to);
    to.events += 2 * static_cast<int>(channel.slots());
    if (channel.filling == slot_filling::by_copies) ++to.streams;
  }
  for (auto& needs : result) needs.hardware_queues = needs.streams;
  return result;
}

}  // namespace zbpp::cuda
