// SPDX-License-Identifier: Apache-2.0
//
// The receiving side of a channel on GPUs: a ring of slots, each with memory and events for a
// message that has been opened and is not yet consumed. Public for authors of backends; users need
// `message_shape` only.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/cuda/handles.hpp>
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
  channel ends;            ///< sender and receiver
  std::size_t window = 1;  ///< from the oldest message not consumed to the newest opened
  std::vector<message_shape> const* shapes = nullptr;  ///< by edge; outlives this
  std::vector<std::int32_t> edges;                     ///< by message: the stage before its edge
  std::vector<transfer_waits> waits;                   ///< by message
  slot_filling filling = slot_filling::by_copies;
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

/// Holds one message: its buffers, and the events that order their use.
struct slot {
  message parts;
  event freed;    ///< on the receiver's compute stream: passes that used the memory are done
  event arrived;  ///< on the channel's stream: the message is there
};

/// Keeps the slots of one channel, found by the number of the message.
class slot_ring {
 public:
  /// Makes slots and their events, for the current device: the receiver's.
  /// @throws cuda_error
  explicit slot_ring(channel_needs needs)
      : needs_(std::move(needs)), slots_(is_handed_over() ? 0 : std::bit_ceil(needs_.window)) {
    for (auto& s : slots_) {
      s.freed = event(event_kind::order);
      s.arrived = event(event_kind::order);
    }
  }

  /// @return the slot of a message
  [[nodiscard]] slot& at(std::int32_t sequence) noexcept {
    return slots_[zbpp::detail::index(sequence) & (slots_.size() - 1)];
  }
  [[nodiscard]] slot const& at(std::int32_t sequence) const noexcept {
    return slots_[zbpp::detail::index(sequence) & (slots_.size() - 1)];
  }
  /// Opens the slot of the next message: takes memory for it and, if the transfer waits for that,
  /// records the event after which the memory is free.
  /// @throws std::bad_alloc; cuda_error
  slot& open(arena& memory, stream_ref compute) {
    auto const sequence = opened_++;
    auto& s = at(sequence);
    for (auto const size : shape(sequence))
      s.parts.push_back(memory.allocate(static_cast<std::size_t>(size), purpose::edge));
    if (waits(sequence).for_slot) compute.record(s.freed);
    return s;
  }
  /// @return what the transfer of a message waits for
  [[nodiscard]] transfer_waits waits(std::int32_t sequence) const noexcept {
    return needs_.waits[zbpp::detail::index(sequence)];
  }
  /// @return how many slots were opened
  [[nodiscard]] std::int32_t opened() const noexcept { return opened_; }
  /// @return the sizes of the buffers of a message
  [[nodiscard]] message_shape const& shape(std::int32_t sequence) const noexcept {
    return (*needs_.shapes)[zbpp::detail::index(needs_.edges[zbpp::detail::index(sequence)])];
  }
  /// Refuses a message that does not fit its edge.
  /// @throws error (wrong_size)
  void check_fits(std::int32_t sequence, message const& msg) const {
    auto const& most = shape(sequence);
    bool fits = msg.size() <= most.size();
    for (std::size_t i = 0; fits && i < msg.size(); ++i)
      fits = static_cast<bytes>(msg[i].size()) <= most[i];
    if (!fits) refuse(sequence, msg, "");
  }
  /// Refuses a message that has another shape than its edge.
  /// @throws error (wrong_size)
  void check_equals(std::int32_t sequence, message const& msg) const {
    bool const equals = std::ranges::equal(msg.buffers(), shape(sequence), {}, [](buffer const& b) {
      return static_cast<bytes>(b.size());
    });
    if (!equals) refuse(sequence, msg, "; NCCL does not transmit sizes, so send exactly these");
  }
  /// @return whether messages are handed over, so that there are no slots
  [[nodiscard]] bool is_handed_over() const noexcept {
    return needs_.filling == slot_filling::handed_over;
  }
  /// @return whether the program sends anything here
  [[nodiscard]] bool is_used() const noexcept { return !needs_.edges.empty(); }
  /// @return the sender and the receiver
  [[nodiscard]] channel const& ends() const noexcept { return needs_.ends; }
  /// Releases all memory and starts counting anew.
  void drain() noexcept {
    for (auto& s : slots_) s.parts.clear();
    opened_ = 0;
  }

 private:
  [[noreturn]] void refuse(
      std::int32_t sequence, message const& msg, std::string const& because) const;

  channel_needs needs_;
  std::vector<slot> slots_;
  std::int32_t opened_ = 0;
};

inline std::vector<message_shape> shapes_of(
    problem const& problem, std::vector<message_shape> const& declared) {
  auto const edges = zbpp::detail::index(problem.stages()) - 1;
  if (!declared.empty() && declared.size() != edges)
    throw error(
        errc::bad_argument,
        "there are shapes for " + std::to_string(declared.size()) + " edges; the problem has " +
            std::to_string(edges) + ", so give one shape for each, or none");
  std::vector<message_shape> shapes;
  for (std::size_t e = 0; e < edges; ++e) {
    auto const size = problem.costs(static_cast<int>(e)).edge;
    auto const name = "edge " + std::to_string(e) + "->" + std::to_string(e + 1);
    if (size <= 0)
      throw error(
          errc::bad_argument,
          name +
              " has no size; state it in stage_costs::edge, since memory for messages on GPUs is "
              "set aside before the first step");
    shapes.push_back(declared.empty() ? message_shape{size} : declared[e]);
    auto const& shape = shapes.back();
    bytes sum = 0;
    for (auto const part : shape) sum += part;
    if (sum != size || shape.size() > message::max_buffers || std::ranges::min(shape) < 0)
      throw error(
          errc::bad_argument,
          name + " has a shape of " + std::to_string(shape.size()) + " buffers and " +
              std::to_string(sum) + " bytes; give it at most 8 buffers and the " +
              std::to_string(size) + " bytes that the costs state");
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
      auto const oldest = std::ranges::find(consumed[c], false) - consumed[c].begin();
      needs[c].window =
          std::max(needs[c].window, consumed[c].size() - static_cast<std::size_t>(oldest));
    }
  }
  return needs;
}

[[noreturn]] inline void slot_ring::refuse(
    std::int32_t sequence, message const& msg, std::string const& because) const {
  auto sizes = [](auto const& list, auto const& size_of) {
    std::string text;
    for (auto const& one : list) text += (text.empty() ? "" : " + ") + std::to_string(size_of(one));
    return text;
  };
  auto const edge = needs_.edges[zbpp::detail::index(sequence)];
  throw error(
      errc::wrong_size,
      "edge " + std::to_string(edge) + "->" + std::to_string(edge + 1) + " carries " +
          sizes(msg.buffers(), [](buffer const& b) { return b.size(); }) +
          " bytes; its shape has " + sizes(shape(sequence), [](bytes size) { return size; }) +
          because);
}

}  // namespace zbpp::cuda
