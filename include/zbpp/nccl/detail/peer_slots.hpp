// SPDX-License-Identifier: Apache-2.0
//
// How many slots the channels need that copies between processes carry, and what memory they take.
// It needs nothing of CUDA.
#pragma once

#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/cuda/channel_needs.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// @return by channel, how many messages its receiver holds at one time in a step, where flows keep
///         them until the last pass of their microbatches
[[nodiscard]] inline std::vector<std::size_t> held_in_step(
    program const& code, traffic const& messages) {
  std::vector<std::size_t> most(messages.channels().size(), 0);
  std::vector<std::vector<std::size_t>> last_use(most.size());  // by message
  auto const m = zbpp::detail::index(code.microbatches());
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const row = code.instructions(rank);
    std::vector<std::size_t> last_pass(zbpp::detail::index(code.placement().stages()) * m, 0);
    auto const flow_of = [m](instruction const& i) {
      return zbpp::detail::index(i.stage) * m + zbpp::detail::index(i.microbatch);
    };
    for (std::size_t i = 0; i < row.size(); ++i)
      if (row[i].is_pass()) last_pass[flow_of(row[i])] = i;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!row[i].is_receive()) continue;
      auto const c = zbpp::detail::index(messages.notes(rank)[i].channel);
      auto& uses = last_use[c];
      uses.push_back(last_pass[flow_of(row[i])]);
      auto const oldest = std::ranges::find_if(uses, [i](std::size_t last) { return last > i; });
      most[c] = std::max(most[c], static_cast<std::size_t>(uses.end() - oldest));
    }
  }
  return most;
}

/// @return the same in a step or an evaluation of a program, whichever holds more
[[nodiscard]] inline std::vector<std::size_t> held_messages(
    program const& code, traffic const& messages) {
  auto most = held_in_step(code, messages);
  auto const evaluation = forward_only(code);
  auto const forwards = held_in_step(evaluation, traffic(evaluation));
  for (std::size_t c = 0; c < most.size(); ++c) most[c] = std::max(most[c], forwards[c]);
  return most;
}

/// @return sizes that no message of a channel exceeds, buffer by buffer
[[nodiscard]] inline cuda::message_shape largest_of(cuda::channel_needs const& needs) {
  cuda::message_shape largest;
  for (auto const edge : needs.edges) {
    auto const& shape = (*needs.shapes)[zbpp::detail::index(edge)];
    largest.resize(std::max(largest.size(), shape.size()), 0);
    for (std::size_t k = 0; k < shape.size(); ++k) largest[k] = std::max(largest[k], shape[k]);
  }
  return largest;
}

/// @return whether two ranks are on one host, where so many are on each, by number
[[nodiscard]] inline bool are_on_one_host(int a, int b, int ranks_per_host) noexcept {
  return a / ranks_per_host == b / ranks_per_host;
}

/// @return how many bytes of pieces the slots of a channel are
/// @param largest  of its messages
[[nodiscard]] inline bytes size_of_slots(
    std::size_t slots, cuda::message_shape const& largest) noexcept {
  bytes one = 0;
  for (auto const size : largest) one += size + 256;  // pieces of a device begin at such multiples
  return one * static_cast<bytes>(slots);
}

/// Keeps memory until the process ends.
inline void keep_for_good(std::vector<buffer> memory) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::vector<buffer>>;  // nothing destroys it
  std::lock_guard const lock(mutex);
  kept.push_back(std::move(memory));
}

}  // namespace zbpp::nccl::detail
