// SPDX-License-Identifier: Apache-2.0
//
// Moves messages between ranks: one FIFO per directed pair, no tags, the k-th send meets the k-th
// receive. `in_process` is the simplest model.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <utility>

namespace zbpp {

/// Counts notifications; a thread that waits for messages sleeps on it.
using wakeup = std::atomic<std::uint32_t>;

/// Notifies a wakeup, which may be null when nobody waits.
inline void notify(wakeup* wake) noexcept {
  if (wake == nullptr) return;
  // Release: whoever sees the new count sees what was published before it.
  wake->fetch_add(1, std::memory_order_release);
  wake->notify_one();
}

/// Models a way to move messages.
///
/// Models also promise: messages of a channel arrive in the order of their sends; a send never
/// blocks its caller, and relies on no receive being open; what is sent stays valid until it is
/// retired; a channel's two sides may be used by different threads, each by one.
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

/// Models one whose receivers can acknowledge, for programs in which no message comes back that
/// would tell what was consumed: evaluations.
template <class T>
concept acknowledging_transport =
    transport<T> && requires(T& t, T const& fixed, int channel, std::int32_t count) {
      // For the receiver: the first `count` messages of this step are consumed.
      t.acknowledge(channel, count);
      // For the sender: whether the first `count` may be retired. It is notified when that changes.
      { fixed.is_released(channel, count) } -> std::same_as<bool>;
    };

/// Models one that knows by itself when the messages arrived that the rank has not taken yet:
/// `arrived_at`. Its backend's clock has `time_of`, which gives that in ticks.
template <class T>
concept clocked_transport =
    transport<T> && requires(T const& fixed, int channel, std::int32_t sequence) {
      {
        fixed.arrived_at(channel, sequence)
      } -> std::same_as<std::chrono::steady_clock::time_point>;
    };

}  // namespace zbpp
