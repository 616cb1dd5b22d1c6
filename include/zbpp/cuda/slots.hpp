// SPDX-License-Identifier: Apache-2.0
//
// The receiving side of a channel on GPUs: a ring of slots, each with memory and events for a
// message that has been opened and is not yet consumed. Public for authors of backends.
#pragma once

#include <zbpp/cuda/channel_needs.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/message.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::cuda {

/// Holds one message: its buffers, and the events that order their use.
struct slot {
  message parts;
  event freed;    ///< on the receiver's compute stream: passes that used the memory are done
  event arrived;  ///< on the channel's stream: the message is there
};

/// Keeps the slots of one channel, found by the number of the message.
class slot_ring {
 public:
  /// Makes slots and their events, for the current device: the receiver's. @throws cuda_error
  explicit slot_ring(channel_needs needs) : needs_(std::move(needs)), slots_(needs_.slots()) {
    for (auto& s : slots_) {
      s.freed = event(event_kind::order);
      s.arrived = event(event_kind::order);
    }
  }

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
  [[nodiscard]] transfer_waits waits(std::int32_t sequence) const noexcept {
    return needs_.waits[zbpp::detail::index(sequence)];
  }
  [[nodiscard]] std::int32_t opened() const noexcept { return opened_; }
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
  [[nodiscard]] bool is_handed_over() const noexcept {
    return needs_.filling == slot_filling::handed_over;
  }
  [[nodiscard]] bool is_used() const noexcept { return !needs_.edges.empty(); }
  [[nodiscard]] channel const& ends() const noexcept { return needs_.ends; }
  /// Releases all memory and starts counting again.
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

[[noreturn]] inline void slot_ring::refuse(
    std::int32_t sequence, message const& msg, std::string const& because) const {
  auto sizes = [](auto const& list, auto const& size_of) {
    std::string text;
    for (auto const& one : list)
      text += zbpp::detail::joined(text.empty() ? "" : " + ", size_of(one));
    return text;
  };
  auto const edge = needs_.edges[zbpp::detail::index(sequence)];
  throw error(errc::wrong_size) + "edge " + edge + "->" + (edge + 1) + " carries " +
      sizes(msg.buffers(), [](buffer const& b) { return b.size(); }) + " bytes; its shape has " +
      sizes(shape(sequence), [](bytes size) { return size; }) + because;
}

}  // namespace zbpp::cuda
