// SPDX-License-Identifier: Apache-2.0
//
// What the channels of a program need on GPUs: slots, shapes of messages, and waits. Public for
// authors of backends; users need `message_shape` only. It needs nothing of CUDA.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/message.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::cuda {

/// Holds the sizes of the buffers that a message consists of, in bytes.
using message_shape = std::vector<bytes>;

/// Says how many slots a channel needs, what its messages look like, and what transfers wait for.
struct channel_needs {
  channel ends;  ///< sender and receiver
  std::size_t window =
      1;  ///< from the oldest message not consumed to the newest opened; 0: no slots
  std::vector<message_shape> const* shapes = nullptr;  ///< by edge; outlives this
  std::vector<std::int32_t> edges;                     ///< by message: the stage before its edge
  std::vector<transfer_waits> waits;                   ///< by message
  slot_filling filling = slot_filling::by_copies;

  [[nodiscard]] std::size_t slots() const noexcept {
    return window == 0 ? 0 : std::bit_ceil(window);
  }
  /// @return how many messages have a place at the sender: all that it cannot know to be consumed
  [[nodiscard]] std::size_t places() const noexcept {
    return std::bit_ceil(std::max<std::size_t>(zbpp::detail::index(ends.in_flight), 1));
  }
};

/// @return the shape of each edge: as declared, else one buffer of the size in the costs
/// @throws error (bad_argument) when an edge has no size, or buffers do not add up to it
[[nodiscard]] inline std::vector<message_shape> shapes_of(
    problem const& problem, std::vector<message_shape> const& declared);

/// @param filling  by channel
/// @return what each channel of a program needs when its slots are filled like this
[[nodiscard]] inline std::vector<channel_needs> needs_of(
    program const& program,
    traffic const& messages,
    std::vector<message_shape> const& shapes,
    std::span<slot_filling const> filling);

inline std::vector<message_shape> shapes_of(
    problem const& problem, std::vector<message_shape> const& declared) {
  auto const edges = zbpp::detail::index(problem.stages()) - 1;
  if (!declared.empty() && declared.size() != edges)
    throw error(errc::bad_argument) + "there are shapes for " + declared.size() +
        " edges; the problem has " + edges + ", so give one shape for each, or none";
  std::vector<message_shape> shapes;
  for (std::size_t e = 0; e < edges; ++e) {
    auto const size = problem.costs(static_cast<int>(e)).edge;
    std::string const name = zbpp::detail::joined("edge ", e, "->", e + 1);
    if (size <= 0)
      throw error(errc::bad_argument) + name +
          " has no size; state it in stage_costs::edge, since memory for messages on GPUs is "
          "set aside before the first step";
    shapes.push_back(declared.empty() ? message_shape{size} : declared[e]);
    auto const& shape = shapes.back();
    bytes sum = 0;
    for (auto const part : shape) sum += part;
    if (sum != size || shape.size() > message::max_buffers || std::ranges::min(shape) < 0)
      throw error(errc::bad_argument) + name + " has a shape of " + shape.size() + " buffers and " +
          sum + " bytes; give it at most 8 buffers and the " + size + " bytes that the costs state";
  }
  return shapes;
}

inline std::vector<channel_needs> needs_of(
    program const& program,
    traffic const& messages,
    std::vector<message_shape> const& shapes,
    std::span<slot_filling const> filling) {
  std::vector<channel_needs> needs(messages.channels().size());
  auto waits = transfer_waits_of(program, messages, filling);
  std::vector<std::vector<bool>> consumed(needs.size());
  for (std::size_t c = 0; c < needs.size(); ++c) {
    needs[c].ends = messages.channels()[c];
    needs[c].filling = filling[c];
    needs[c].shapes = &shapes;
    if (filling[c] == slot_filling::handed_over) needs[c].window = 0;
    needs[c].waits = std::move(waits[c]);
  }
  for (int rank = 0; rank < program.ranks(); ++rank) {
    auto const row = program.instructions(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto const& note = messages.notes(rank)[i];
      if (note.channel == channel_map::none || row[i].is_send()) continue;
      auto const c = zbpp::detail::index(note.channel);
      if (row[i].is_pass()) {
        consumed[c][zbpp::detail::index(note.sequence)] = true;
        continue;
      }
      consumed[c].push_back(false);
      needs[c].edges.push_back(std::min(row[i].stage, row[i].other_stage()));
      if (needs[c].window == 0) continue;
      auto const oldest = std::ranges::find(consumed[c], false) - consumed[c].begin();
      needs[c].window =
          std::max(needs[c].window, consumed[c].size() - static_cast<std::size_t>(oldest));
    }
  }
  return needs;
}

}  // namespace zbpp::cuda
