// SPDX-License-Identifier: Apache-2.0
//
// Moves messages between ranks: one FIFO a directed pair, no tags, the k-th send meets the k-th
// receive. Here stand the concept and its simplest model, ranks of one process.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp {

/// Counts rings; whoever waits for messages parks on it.
using wakeup = std::atomic<std::uint32_t>;

/// Wakes whoever waits at a wakeup; null when nobody does.
inline void notify(wakeup* wake) noexcept {
  if (wake == nullptr) return;
  // Release: whoever sees the wakeup sees what was published before it rang.
  wake->fetch_add(1, std::memory_order_release);
  wake->notify_one();
}

/// Models a way to move messages.
///
/// Models also promise: messages of a channel arrive in the order of their sends; a send never
/// blocks its caller, and relies on no receive being open; what is sent stays valid until it is
/// retired; a channel's sender side and receiver side may be used by different threads, each by
/// one.
template <class T>
concept transport = requires(
    T t,
    T const& fixed,
    int rank_or_channel,
    std::int32_t sequence,
    ticks time,
    bytes size,
    message msg,
    arena& memory,
    wakeup* wake) {
  t.bind(rank_or_channel, memory, wake);
  t.post_receive(rank_or_channel, size);
  t.send(rank_or_channel, std::move(msg), time);
  { T::not_yet } -> std::convertible_to<ticks>;  // what `arrival` gives before the send
  { fixed.arrival(rank_or_channel, sequence) } -> std::same_as<ticks>;
  { t.take(rank_or_channel, sequence, size) } -> std::same_as<message>;
  t.retire(rank_or_channel, sequence);
  t.abort();
  t.drain();
};

/// Moves messages between ranks of one process: the receiver copies from the sender's memory into
/// its own. The sender's buffers stay until a later message tells that they were consumed.
class in_process {
 public:
  static constexpr ticks not_yet = -1;

  /// Makes channels of their stated depths, numbered as they stand in the list.
  in_process(int ranks, std::vector<channel> const& channels) : ranks_(detail::index(ranks)) {
    for (auto const& c : channels)
      lanes_.push_back(std::make_unique<lane>(c.to, detail::index(c.in_flight)));
  }

  /// Says where what a rank receives goes, and which wakeup to ring when something arrives for it.
  /// @param wake  may be null when nobody waits
  void bind(int rank, arena& memory, wakeup* wake) noexcept {
    ranks_[detail::index(rank)] = {&memory, wake};
  }

  /// Opens the next slot of a channel, `most` bytes large.
  void post_receive(int channel, bytes most) noexcept { open(channel, most); }

  /// Ships a message. Never blocks.
  /// @param arrival  when it counts as arrived, in the clock of the engines
  void send(int channel, message&& msg, ticks arrival) noexcept {
    auto& l = *lanes_[detail::index(channel)];
    auto const number = l.published.load(std::memory_order_relaxed);
    auto& place = l.at(number);
    place.msg = std::move(msg);
    place.arrival = arrival;
    // Release: the receiver that sees the number sees the message, and what the pass wrote into it.
    l.published.store(number + 1, std::memory_order_release);
    notify(ranks_[detail::index(l.to)].wake);
  }

  /// @return when a message arrived or will arrive; `not_yet` when it has not been sent
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const noexcept {
    auto const& l = *lanes_[detail::index(channel)];
    auto const number = static_cast<std::uint32_t>(sequence);
    // Acquire: pairs with the release in send.
    if (l.published.load(std::memory_order_acquire) <= number) return not_yet;
    return l.at(number).arrival;
  }

  /// Gives a message that has arrived, in memory of the receiving rank, and closes its slot.
  /// @throws std::bad_alloc
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes most) {
    auto& l = *lanes_[detail::index(channel)];
    auto& memory = *receiver(channel).memory;
    open(channel, -most);
    message copy;
    for (auto const& part : l.at(static_cast<std::uint32_t>(sequence)).msg.buffers()) {
      auto own = part ? memory.allocate(part.size(), purpose::edge) : buffer{};
      if (part.size() > 0) std::memcpy(own.data(), part.data(), part.size());
      copy.push_back(std::move(own));
    }
    return copy;
  }

  /// Lets go of the messages of a channel before number `count`; for the sender, who knows that
  /// they were consumed.
  void retire(int channel, std::int32_t count) noexcept {
    auto& l = *lanes_[detail::index(channel)];
    for (auto const end = static_cast<std::uint32_t>(count); l.retired < end; ++l.retired)
      l.at(l.retired).msg.clear();
  }

  /// Wakes everybody who waits; for a step that failed.
  void abort() noexcept {
    for (auto const& r : ranks_) notify(r.wake);
  }

  /// Lets go of all messages, closes all slots and starts counting anew; only when no rank is
  /// running.
  void drain() noexcept {
    for (auto& l : lanes_) {
      retire(
          static_cast<int>(&l - lanes_.data()),
          static_cast<std::int32_t>(l->published.load(std::memory_order_relaxed)));
      l->published.store(0, std::memory_order_relaxed);
      l->retired = 0;
      if (l->open != 0) open(static_cast<int>(&l - lanes_.data()), -l->open);
    }
  }

 private:
  struct entry {
    message msg;
    ticks arrival = 0;
  };
  struct lane {
    lane(int receiver, std::size_t depth)
        : to(receiver),
          ring(std::bit_ceil(std::max<std::size_t>(depth, 1))),
          mask(ring.size() - 1) {}

    [[nodiscard]] entry& at(std::uint32_t number) noexcept { return ring[number & mask]; }
    [[nodiscard]] entry const& at(std::uint32_t number) const noexcept {
      return ring[number & mask];
    }

    // How many messages were sent. It is written by the sender alone.
    alignas(64) std::atomic<std::uint32_t> published{0};
    int to;
    std::vector<entry> ring;  // its length is a power of two
    std::size_t mask;
    // Touched by the sender alone.
    alignas(64) std::uint32_t retired = 0;
    // Touched by the receiver alone: the bytes of slots whose message was not taken.
    alignas(64) bytes open = 0;
  };
  struct rank_end {
    arena* memory = nullptr;
    wakeup* wake = nullptr;
  };

  [[nodiscard]] rank_end const& receiver(int channel) const noexcept {
    return ranks_[detail::index(lanes_[detail::index(channel)]->to)];
  }

  void open(int channel, bytes change) noexcept {
    lanes_[detail::index(channel)]->open += change;
    receiver(channel).memory->count_edge(change);
  }

  std::vector<rank_end> ranks_;
  std::vector<std::unique_ptr<lane>> lanes_;
};

}  // namespace zbpp
