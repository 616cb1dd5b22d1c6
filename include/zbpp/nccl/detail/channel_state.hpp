// SPDX-License-Identifier: Apache-2.0
//
// What a transport has of one channel: whoever carries it, slots at the receiver, and at the sender
// the messages that are still its own.
#pragma once

#include <zbpp/cuda/channel_needs.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>
#include <zbpp/nccl/detail/peer_set.hpp>
#include <zbpp/runtime/message.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp::nccl::detail {

/// Holds what a transport has of a channel whose sender or receiver, or both, are in this process.
struct channel_state {
  static constexpr int not_here = -1;

  /// Makes events and slots for a channel.
  /// @param from  the sender's device; `not_here` when it is in another process
  /// @param to    the receiver's, likewise
  /// @throws cuda_error
  channel_state(
      communicator_set const& communicators,
      peer_set const& peers,
      int channel,
      cuda::channel_needs needs,
      int from,
      int to)
      : sender(communicators.endpoint_of(channel, needs.ends.from)),
        receiver(communicators.endpoint_of(channel, needs.ends.to)),
        outgoing(peers.sender_of(channel)),
        incoming(peers.receiver_of(channel)),
        messages(needs.places()) {
    if (!peers.carries(channel)) {
      sender_number = communicators.number_in(channel, needs.ends.from);
      receiver_number = communicators.number_in(channel, needs.ends.to);
    }
    if (from != not_here)
      made = cuda::on_device(from, [] { return cuda::event(cuda::event_kind::order); });
    if (to == not_here) needs.window = 0;
    slots = cuda::on_device(to != not_here ? to : from, [&] {
      return std::make_unique<cuda::slot_ring>(std::move(needs));
    });
  }

  /// Releases what was sent in a step.
  void release_sent() noexcept {
    while (retired < sent) at(retired++).clear();
    sent = retired = 0;
  }
  /// Releases what was received, and counts anew.
  void drain_slots() noexcept {
    slots->drain();
    if (incoming != nullptr) incoming->begin_step();
  }
  /// @return where a message is that was sent
  [[nodiscard]] message& at(std::uint32_t number) noexcept {
    return messages[number & (messages.size() - 1)];
  }

  // By NCCL, or by copies; null where the other carries the channel, or in another process.
  endpoint* sender;
  endpoint* receiver;
  peer_sender* outgoing;
  peer_receiver* incoming;
  int sender_number = -1;
  int receiver_number = -1;
  std::unique_ptr<cuda::slot_ring> slots;
  // Touched by the sender alone.
  alignas(64) cuda::event made;  // on the sender's compute stream
  std::vector<message> messages;
  std::uint32_t sent = 0;
  std::uint32_t retired = 0;
};

}  // namespace zbpp::nccl::detail
