// SPDX-License-Identifier: Apache-2.0
//
// Moves messages between ranks of one process. Within a device the receiver gets the sender's
// memory; from one to another a copy on the channel's own stream fills the receiver's slot. The
// host only issues; events say which stream waits for which.
#pragma once

#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp::cuda::detail {

/// Hands messages over, or copies them from the sender's memory into the receiver's slots.
///
/// For the host a message has arrived once its sender has issued it: `take` enqueues the copy,
/// after the pass that made the message and after the passes that used the slot's memory before,
/// and makes the receiver's next pass wait for it. The sender's memory is free again once a later
/// message shows that the receiver has consumed this one; what the sender issues from then on waits
/// for that later message, and so for the copy. At the end of a step it waits for the copies.
///
/// Between ranks of one device, whose work one thread issues, `take` lets the receiver's next pass
/// wait for the pass that made the message, and gives the sender's memory. When the receiver has
/// let go of that, its kernels may still run; so the sender gets the memory back with the next
/// message that the receiver sends to it, which the sender's stream waits for anyway, or when the
/// devices are done.
class p2p_transport {
 public:
  static constexpr ticks not_yet = -1;

  /// Makes streams and events for the channels of a program. Copies take the way that is open
  /// between their devices.
  /// @param contexts  by rank; they outlive the transport
  /// @param needs     of each channel
  /// @param states    how ranks tell each other of gradients
  /// @throws cuda_error
  p2p_transport(
      std::vector<device_context*> contexts,
      std::vector<channel_needs> needs,
      state_map const& states)
      : ranks_(contexts.size()), states_(states) {
    for (std::size_t r = 0; r < contexts.size(); ++r) ranks_[r].context = contexts[r];
    for (std::size_t c = 0; c < needs.size(); ++c) {
      auto& from = *contexts[zbpp::detail::index(needs[c].ends.from)];
      auto& to = *contexts[zbpp::detail::index(needs[c].ends.to)];
      channels_.push_back(std::make_unique<channel_state>(std::move(needs[c]), from, to));
    }
  }

  /// States the memory for what a rank receives, and the wakeup to notify when something is sent.
  void bind(int rank, arena& memory, wakeup* wake) noexcept {
    ranks_[zbpp::detail::index(rank)].memory = &memory;
    ranks_[zbpp::detail::index(rank)].wake = wake;
    states_.bind(rank, wake);
  }

  [[nodiscard]] state_link& states() noexcept { return states_; }

  /// Opens the slot of the next message.
  /// @throws std::bad_alloc; cuda_error
  void post_receive(int channel, bytes) {
    auto& l = at(channel);
    auto& to = receiver(l);
    if (!l.slots.is_handed_over()) l.slots.open(*to.memory, to.context->compute());
  }

  /// Sends what the sender's passes have made so far. Never blocks.
  /// @throws error (wrong_size) when the message does not fit its edge; cuda_error
  void send(int channel, message&& msg, ticks arrival) {
    auto& l = at(channel);
    auto const number = l.published.load(std::memory_order_relaxed);
    auto const sequence = static_cast<std::int32_t>(number - l.sent_before);
    l.slots.check_fits(sequence, msg);
    auto& sent = l.at(number);
    if (l.slots.waits(sequence).for_sender) sender(l).context->compute().record(sent.made);
    sent.msg = std::move(msg);
    sent.arrival = arrival;
    if (l.slots.is_handed_over())
      sent.returned = sender(l).memory->take_released(*receiver(l).memory);
    // Release: the receiver that sees the number finds the event recorded.
    l.published.store(number + 1, std::memory_order_release);
    notify(receiver(l).wake);
  }

  /// @return when a message will arrive, as planned; `not_yet` when it has not been issued
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const noexcept {
    if (!have_arrived(channel, sequence + 1)) return not_yet;
    auto const& l = *channels_[zbpp::detail::index(channel)];
    return l.at(l.received_before + static_cast<std::uint32_t>(sequence)).arrival;
  }

  /// @return whether the first `count` messages of this step were issued; also when consumed
  [[nodiscard]] bool have_arrived(int channel, std::int32_t count) const noexcept {
    auto const& l = *channels_[zbpp::detail::index(channel)];
    auto const end = l.received_before + static_cast<std::uint32_t>(count);
    // Acquire: pairs with the release in send. Counters may wrap around, so their distance counts.
    return static_cast<std::int32_t>(l.published.load(std::memory_order_acquire) - end) >= 0;
  }

  /// Gives a message, for the passes that the receiver issues from now on: as it is, or its slot,
  /// to which a copy is enqueued.
  /// @throws std::bad_alloc; cuda_error
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes) {
    auto& l = at(channel);
    auto& sent = l.at(l.received_before + static_cast<std::uint32_t>(sequence));
    auto result = l.slots.is_handed_over() ? hand_over(l, sequence, sent) : copy(l, sequence, sent);
    // Release: the sender that sees the count finds the event recorded. Messages may be taken in
    // another order than they were sent in.
    l.consumed.store(l.consumed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    return result;
  }

  /// Gives up those of the first `count` messages of this step that were not taken, and closes
  /// their slots; for the receiver, when all of them have been issued.
  void discard(int channel, std::int32_t count) noexcept {
    auto& l = at(channel);
    l.slots.drain();
    // Release: as in take.
    l.consumed.store(
        l.received_before + static_cast<std::uint32_t>(count), std::memory_order_release);
  }

  /// Tells the senders of a rank that it has taken or discarded all that this step brought.
  void end_step(int rank) noexcept {
    for (auto const& l : channels_)
      if (l->slots.ends().to == rank) notify(sender(*l).wake);
  }

  /// Begins the next step of a rank, or the same one again: releases what it sent, for use after
  /// the copies of it, and counts from 0 what it sends and receives.
  /// @return false while a receiver has messages to take or discard; it notifies the rank then
  /// @throws cuda_error
  [[nodiscard]] bool begin_step(int rank) {
    for (auto const& l : channels_)
      // Acquire: pairs with the release in take.
      if (l->slots.ends().from == rank && l->consumed.load(std::memory_order_acquire) !=
                                              l->published.load(std::memory_order_relaxed))
        return false;
    for (auto const& l : channels_) {
      if (l->slots.ends().from == rank) {
        l->sent_before = l->published.load(std::memory_order_relaxed);
        if (auto const* const copy = std::exchange(l->last_copy, nullptr);
            copy != nullptr && l->retired != l->sent_before)
          sender(*l).context->compute().wait(*copy);
        retire_until(*l, l->sent_before);
      }
      if (l->slots.ends().to == rank) {
        l->received_before = l->consumed.load(std::memory_order_relaxed);
        l->slots.drain();
      }
    }
    return true;
  }

  /// Releases the messages of a channel before number `count`; the sender knows they are consumed.
  void retire(int channel, std::int32_t count) noexcept {
    auto& l = at(channel);
    retire_until(l, l.sent_before + static_cast<std::uint32_t>(count));
  }

  /// Wakes every waiting thread, when a step has failed.
  void abort() noexcept {
    for (auto const& rank : ranks_) notify(rank.wake);
  }

  /// Releases all messages and slots; only when no rank is running and the devices are done.
  void drain() noexcept {
    for (auto& l : channels_) {
      l->sent_before = l->published.load(std::memory_order_relaxed);
      retire_until(*l, l->sent_before);
      l->received_before = l->sent_before;
      l->consumed.store(l->sent_before, std::memory_order_relaxed);
      l->last_copy = nullptr;
      l->slots.drain();
    }
    for (auto const& rank : ranks_) rank.memory->end_loans();
    states_.drain();
  }

  /// Blocks the host until all copies are done, whether they succeeded or not.
  void synchronize() noexcept {
    for (auto const& l : channels_)
      if (l->copies.is_valid()) cudaStreamSynchronize(l->copies.view());
  }

  /// Copies a message through every channel that copies, so that nothing is slow in the first step.
  /// @throws std::bad_alloc; cuda_error
  void warm_up() {
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      auto const channel = static_cast<int>(c);
      auto& l = *channels_[c];
      if (!l.slots.is_used() || l.slots.is_handed_over()) continue;
      auto const& from = sender(l);
      message msg;
      device_guard const there(l.from_device);
      for (auto const size : l.slots.shape(0)) {
        msg.push_back(from.memory->allocate(static_cast<std::size_t>(size), purpose::edge));
        auto const& part = msg.buffers().back();
        check(cudaMemsetAsync(part.data(), 0, part.size(), from.context->compute()));
      }
      // The transfer of a first message may come after others in the program, and wait for nothing.
      from.context->compute().synchronize();
      post_receive(channel, 0);
      send(channel, std::move(msg), 0);
      auto const received = take(channel, 0, 0);
      receiver(l).context->compute().synchronize();
    }
    drain();
  }

 private:
  struct sent_message {
    message msg;
    event made{event_kind::order};  // on the sender's compute stream
    ticks arrival = 0;
    released_loans returned;  // what the sender of this has of the receiver, and needs no longer
  };
  struct channel_state {
    channel_state(channel_needs needs, device_context const& sender, device_context const& receiver)
        : from_device(sender.device()),
          to_device(receiver.device()),
          sent(on_device(from_device, [&] { return std::vector<sent_message>(needs.places()); })),
          copies(
              needs.filling == slot_filling::handed_over
                  ? stream()
                  : on_device(to_device, [] { return stream(stream_priority::highest); })),
          slots(on_device(to_device, [&] { return slot_ring(std::move(needs)); })) {}

    [[nodiscard]] sent_message& at(std::uint32_t number) noexcept {
      return sent[number & (sent.size() - 1)];
    }
    [[nodiscard]] sent_message const& at(std::uint32_t number) const noexcept {
      return sent[number & (sent.size() - 1)];
    }

    // How many messages were sent. It is written by the sender alone.
    alignas(64) std::atomic<std::uint32_t> published{0};
    int from_device;
    int to_device;
    std::vector<sent_message> sent;
    // Touched by the sender alone.
    alignas(64) std::uint32_t retired = 0;
    std::uint32_t sent_before = 0;  // this step
    // How many messages were taken or discarded. It is written by the receiver alone.
    alignas(64) std::atomic<std::uint32_t> consumed{0};
    // After the last copy of this step; the sender may look once all messages are consumed.
    event const* last_copy = nullptr;
    // Touched by the receiver alone.
    std::uint32_t received_before = 0;  // this step
    stream copies;
    slot_ring slots;
  };
  struct rank_state {
    device_context* context = nullptr;
    arena* memory = nullptr;
    wakeup* wake = nullptr;
  };

  [[nodiscard]] channel_state& at(int channel) noexcept {
    return *channels_[zbpp::detail::index(channel)];
  }
  [[nodiscard]] rank_state& sender(channel_state const& l) noexcept {
    return ranks_[zbpp::detail::index(l.slots.ends().from)];
  }
  [[nodiscard]] rank_state& receiver(channel_state const& l) noexcept {
    return ranks_[zbpp::detail::index(l.slots.ends().to)];
  }

  // Releases messages that were consumed or discarded: what these would return goes with the next.
  void retire_until(channel_state& l, std::uint32_t end) noexcept {
    for (; l.retired != end; ++l.retired) {
      auto& sent = l.at(l.retired);
      sent.msg.clear();
      if (l.slots.is_handed_over()) sender(l).memory->keep_released(std::move(sent.returned));
    }
  }

  [[nodiscard]] message hand_over(channel_state& l, std::int32_t sequence, sent_message& sent) {
    auto& to = receiver(l);
    if (l.slots.waits(sequence).for_sender) to.context->compute().wait(sent.made);
    sent.returned.clear();
    message result;
    for (auto const& from : sent.msg.buffers()) result.push_back(to.memory->borrow(from));
    return result;
  }

  [[nodiscard]] message copy(channel_state& l, std::int32_t sequence, sent_message const& sent) {
    auto& slot = l.slots.at(sequence);
    stream_ref const by = l.copies;
    auto const waits = l.slots.waits(sequence);
    if (waits.for_sender) by.wait(sent.made);
    if (waits.for_slot) by.wait(slot.freed);
    message result;
    std::size_t part = 0;
    for (auto const& from : sent.msg.buffers()) {
      buffer own = slot.parts[part++];
      own.truncate(from.size());
      enqueue_copy(l, own, from);
      result.push_back(std::move(own));
    }
    if (waits.by_receiver) {
      by.record(slot.arrived);
      receiver(l).context->compute().wait(slot.arrived);
      l.last_copy = &slot.arrived;
    }
    slot.parts.clear();
    return result;
  }

  static void enqueue_copy(channel_state const& l, buffer const& to, buffer const& from) {
    if (from.size() == 0) return;
    check(cudaMemcpyPeerAsync(
        to.data(), l.to_device, from.data(), l.from_device, from.size(), stream_ref(l.copies)));
  }

  std::vector<rank_state> ranks_;
  std::vector<std::unique_ptr<channel_state>> channels_;
  in_process_states states_;
};

}  // namespace zbpp::cuda::detail
