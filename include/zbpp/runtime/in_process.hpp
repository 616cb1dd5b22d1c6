// SPDX-License-Identifier: Apache-2.0
//
// A transport between ranks of one process: a ring of messages for each channel, one copy for each
// message of memory.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp {

/// Moves messages between ranks of one process: the receiver copies from the sender's memory into
/// its own, and takes objects as they are. The sender's buffers stay until a later message tells
/// that they were consumed.
class in_process {
 public:
  static constexpr ticks not_yet = -1;

  /// Makes channels of their stated depths, numbered as they stand in the list.
  in_process(int ranks, std::vector<channel> const& channels)
      : in_process(state_map(ranks), channels) {}
  /// Makes such channels, and those by which ranks tell each other of gradients.
  in_process(state_map const& states, std::vector<channel> const& channels);

  /// Sets the receive arena and wakeup of a rank.
  /// @param wake  notified when a message arrives for the rank; may be null when nobody waits
  void bind(int rank, arena& memory, wakeup* wake) noexcept {
    ranks_[detail::index(rank)] = {&memory, wake};
    states_.bind(rank, wake);
  }

  [[nodiscard]] state_link& states() noexcept { return states_; }

  /// Opens the next slot of a channel, `most` bytes large.
  void post_receive(int channel, bytes most) noexcept { open(lane_of(channel), most); }

  /// Ships a message. Never blocks.
  /// @param arrival  when it counts as arrived, in the clock of the engines
  void send(int channel, message&& msg, ticks arrival) noexcept {
    auto& l = lane_of(channel);
    auto const number = l.published.load(std::memory_order_relaxed);
    auto& place = l.at(number);
    place.msg = std::move(msg);
    place.arrival = arrival;
    // Release: the receiver that sees the number sees the message, and what the pass wrote into it.
    l.published.store(number + 1, std::memory_order_release);
    notify(receiver(l).wake);
  }

  /// @return when a message arrived or will arrive; `not_yet` when it has not been sent
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const noexcept {
    auto const& l = lane_of(channel);
    if (!l.has(sequence + 1)) return not_yet;
    return l.at(l.received + static_cast<std::uint32_t>(sequence)).arrival;
  }

  /// Gives a message that has arrived, in memory of the receiving rank, and closes its slot.
  /// @throws std::bad_alloc
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes most) {
    auto& l = lane_of(channel);
    open(l, -most);
    auto const number = l.received + static_cast<std::uint32_t>(sequence);
    auto taken = l.at(number).msg.move_to(*receiver(l).memory);
    // Release: the sender that sees the count may release the message.
    l.consumed.store(l.consumed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    return taken;
  }

  /// @return whether the first `count` messages of this step have been sent. Unlike `arrival`, it
  ///         may be asked when they are consumed: their places may be in use again by then.
  [[nodiscard]] bool have_arrived(int channel, std::int32_t count) const noexcept {
    return lane_of(channel).has(count);
  }

  /// Gives up those of the first `count` messages of this step that were not taken, and closes
  /// their slots; for the receiver, when all of them have arrived.
  void discard(int channel, std::int32_t count) noexcept;

  /// Tells the senders of a rank that it has taken or discarded all that this step brought.
  void end_step(int rank) noexcept;

  /// Begins the next step of a rank, or the same one again: releases what it sent, and counts from
  /// 0 what it sends and receives.
  /// @return false while a receiver has messages to take or discard; it notifies the rank then
  [[nodiscard]] bool begin_step(int rank) noexcept;

  /// Releases the messages of a channel before number `count`, which the sender knows are consumed.
  void retire(int channel, std::int32_t count) noexcept {
    auto& l = lane_of(channel);
    l.retire_until(l.sent + static_cast<std::uint32_t>(count));
  }

  /// Tells the sender of a channel that the first `count` messages of this step are consumed.
  void acknowledge(int channel, std::int32_t count) noexcept {
    auto& l = lane_of(channel);
    // Release: the sender that sees the count may release the messages.
    l.acknowledged.store(l.received + static_cast<std::uint32_t>(count), std::memory_order_release);
    notify(ranks_[detail::index(l.from)].wake);
  }
  /// @return whether the receiver has acknowledged the first `count` messages of this step
  [[nodiscard]] bool is_released(int channel, std::int32_t count) const noexcept {
    auto const& l = lane_of(channel);
    auto const end = l.sent + static_cast<std::uint32_t>(count);
    // Acquire: pairs with the release in acknowledge. Their distance counts, as in have_arrived.
    return static_cast<std::int32_t>(l.acknowledged.load(std::memory_order_acquire) - end) >= 0;
  }

  /// Wakes everybody who waits; for a step that failed.
  void abort() noexcept;

  /// Releases all messages, closes all slots and counts from 0; only when no rank is running.
  void drain() noexcept;

 private:
  struct entry {
    message msg;
    ticks arrival = 0;
  };
  struct lane {
    lane(channel const& ends);

    // Tells the receiver whether so many messages of this step have been sent.
    [[nodiscard]] bool has(std::int32_t count) const noexcept {
      auto const end = received + static_cast<std::uint32_t>(count);
      // Acquire: pairs with the release in send. Counters may wrap, so their distance counts.
      return static_cast<std::int32_t>(published.load(std::memory_order_acquire) - end) >= 0;
    }

    void retire_until(std::uint32_t end) noexcept {
      for (; retired != end; ++retired) at(retired).msg.clear();
    }

    [[nodiscard]] entry& at(std::uint32_t number) noexcept { return ring[number & mask]; }
    [[nodiscard]] entry const& at(std::uint32_t number) const noexcept {
      return ring[number & mask];
    }

    // How many messages were sent. It is written by the sender alone.
    alignas(64) std::atomic<std::uint32_t> published{0};
    int from;
    int to;
    std::vector<entry> ring;  // its length is a power of two
    std::size_t mask;
    // Touched by the sender alone.
    alignas(64) std::uint32_t retired = 0;
    std::uint32_t sent = 0;  // before this step
    // How many messages were taken or discarded. It is written by the receiver alone.
    alignas(64) std::atomic<std::uint32_t> consumed{0};
    std::atomic<std::uint32_t> acknowledged{0};  // in evaluations; written by the receiver alone
    // Touched by the receiver alone.
    std::uint32_t received = 0;  // before this step
    bytes open = 0;              // of slots whose message was not taken
  };
  struct rank_end {
    arena* memory = nullptr;
    wakeup* wake = nullptr;
  };

  [[nodiscard]] lane& lane_of(int channel) noexcept { return *lanes_[detail::index(channel)]; }
  [[nodiscard]] lane const& lane_of(int channel) const noexcept {
    return *lanes_[detail::index(channel)];
  }
  [[nodiscard]] rank_end const& receiver(lane const& l) const noexcept {
    return ranks_[detail::index(l.to)];
  }

  void open(lane& l, bytes change) noexcept {
    l.open += change;
    receiver(l).memory->count_edge(change);
  }

  std::vector<rank_end> ranks_;
  std::vector<std::unique_ptr<lane>> lanes_;
  in_process_states states_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/in_process.ipp>
#endif
