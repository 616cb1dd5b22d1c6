// SPDX-License-Identifier: Apache-2.0
//
// What both ends of a channel know of its messages, for authors of transports: which were sent,
// have left and are consumed, and which have arrived. An engine and what moves the bytes, which may
// be two threads, keep together by it.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/message.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp {

/// Keeps the messages of a channel at its sender. One after the other they are pushed, begun,
/// delivered and retired: the engine pushes and retires, and what moves the bytes does the rest.
///
/// A message has a place while it is here, a number below `size()`, by which a transport may keep
/// what it has of it. Nothing is allocated once the ring is made.
class sent_ring {
 public:
  /// @param most  bytes of a message
  sent_ring(channel const& ends, bytes most)
      : ring_(std::bit_ceil(detail::index(ends.in_flight) + 1)), most_(most) {}
  [[nodiscard]] std::size_t size() const noexcept { return ring_.size(); }

  // For the engine.

  /// Takes a message.
  /// @throws error (wrong_size) when it is larger than it may be; (bad_argument) when more of them
  ///         are not retired than the channel was made for
  void push(message&& msg) {
    if (msg.total_size() > most_)
      throw error(errc::wrong_size) + "a message of " + msg.total_size() +
          " bytes; its channel carries at most " + most_ + " at once";
    auto const number = published_.load(std::memory_order_relaxed);
    detail::require(
        number - retired_ < ring_.size(),
        "a channel has at most channel.in_flight messages that are not retired");
    auto& added = ring_[place(number)];
    added.msg = std::move(msg);
    added.step = step_;
    added.sequence = static_cast<std::uint32_t>(number - first_);
    // Release: who moves the bytes and sees the number sees the message and what it holds.
    published_.store(number + 1, std::memory_order_release);
  }
  /// @return whether all messages are delivered
  [[nodiscard]] bool is_flushed() const noexcept {
    return delivered_.load(std::memory_order_acquire) == published_.load(std::memory_order_relaxed);
  }
  /// @return whether the first `count` messages of this step are delivered
  [[nodiscard]] bool has_delivered(std::int32_t count) const noexcept {
    return delivered_.load(std::memory_order_acquire) >= first_ + static_cast<std::uint32_t>(count);
  }
  /// Releases the first `count` messages of this step, which were consumed.
  void retire(std::int32_t count) noexcept {
    retire_before(first_ + static_cast<std::uint32_t>(count));
  }
  /// Releases all messages and begins the next step, while nobody moves bytes.
  void drain() noexcept {
    first_ = published_.load(std::memory_order_relaxed);
    retire_before(first_);
    ++step_;
  }

  // For who moves the bytes.

  struct entry {
    message msg;
    std::uint32_t step = 0;      ///< how many steps the channel went through before
    std::uint32_t sequence = 0;  ///< of the message in its step
  };
  [[nodiscard]] entry const& at(std::size_t place) const noexcept { return ring_[place]; }
  /// @return the place of the next message to begin; none where all are begun
  [[nodiscard]] std::optional<std::size_t> next() const noexcept {
    auto const number = begun_.load(std::memory_order_relaxed);
    // Acquire: pairs with the release in `push`.
    if (number == published_.load(std::memory_order_acquire)) return {};
    return place(number);
  }
  /// Counts the next message as begun, before the receiver can have all of it: it may be consumed,
  /// and the engine learn of it, while the call that moves its bytes has not returned. From here on
  /// its entry is not to be read.
  void begin() noexcept {
    // Release: pairs with the acquire in `retire_before`, so that the entry was read before.
    begun_.store(begun() + 1, std::memory_order_release);
  }
  /// @return the place of the oldest message that is begun and not delivered; none where all are
  [[nodiscard]] std::optional<std::size_t> under_way() const noexcept {
    return delivered() == begun() ? std::nullopt : std::optional(place(delivered()));
  }
  /// Counts the oldest message under way as delivered: no send has to wait for it.
  void deliver() noexcept {
    // Release: whoever sees the count may release what was sent.
    delivered_.store(delivered() + 1, std::memory_order_release);
  }
  /// @return how many messages were begun, in all steps
  [[nodiscard]] std::uint64_t begun() const noexcept {
    return begun_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t delivered() const noexcept {
    return delivered_.load(std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] std::size_t place(std::uint64_t number) const noexcept {
    return number & (ring_.size() - 1);
  }
  void retire_before(std::uint64_t end) noexcept {
    // Acquire: pairs with the release in `begin`. What was consumed was begun, so it is seen here.
    static_cast<void>(begun_.load(std::memory_order_acquire));
    for (; retired_ < end; ++retired_) ring_[place(retired_)].msg.clear();
  }

  // The engine writes these, and the other side reads the first.
  alignas(64) std::atomic<std::uint64_t> published_{0};
  std::uint64_t retired_ = 0;
  std::uint64_t first_ = 0;  // of this step
  std::uint32_t step_ = 0;
  // Who moves the bytes writes these, and the engine reads them.
  alignas(64) std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> delivered_{0};
  std::vector<entry> ring_;  // its length is a power of two
  bytes most_;
};

/// Keeps which messages of a channel are at its receiver. One after the other they are added and
/// arrive, by what moves the bytes; the engine takes them, in any order, and frees their places.
///
/// A place is a number below `size()`, by which a transport keeps the message itself. Messages of
/// the next step may arrive before the engine begins it. Nothing is allocated once the ring is
/// made.
class received_ring {
 public:
  /// @param notes_arrivals  whether `arrived_at` is going to be asked
  received_ring(channel const& ends, bool notes_arrivals)
      : notes_arrivals_(notes_arrivals),
        ring_(std::bit_ceil(detail::index(ends.in_flight) + detail::index(ends.slots) + 2)) {}
  [[nodiscard]] std::size_t size() const noexcept { return ring_.size(); }

  // For the engine.

  [[nodiscard]] bool has_arrived(std::int32_t sequence) const noexcept {
    auto const number = number_of(sequence);
    // Acquire: pairs with the release in `arrive`.
    return number < arrived_.load(std::memory_order_acquire) && ring_[place(number)].step == step_;
  }
  /// @return when a message arrived that is not taken
  [[nodiscard]] std::chrono::steady_clock::time_point arrived_at(
      std::int32_t sequence) const noexcept {
    return ring_[place_of(sequence)].arrived_at;
  }
  /// @return where a message of this step is
  [[nodiscard]] std::size_t place_of(std::int32_t sequence) const noexcept {
    return place(number_of(sequence));
  }
  /// Lets the place of a message be used again, of which nothing is needed any more.
  void free(std::size_t place) noexcept {
    // Release: who sees that there is room fills the place again.
    ring_[place].is_full.store(false, std::memory_order_release);
  }
  /// Begins the next step, while nobody moves bytes. Messages of later steps stay.
  /// @param give_up  as for `give_up_old`
  template <class GiveUp>
  void drain(GiveUp const& give_up) {
    ++step_;
    // The places of older messages hold others by now, so those were taken.
    first_ = std::max(first_, added_ - std::min<std::uint64_t>(added_, ring_.size()));
    give_up_old(give_up);
  }
  /// Gives up messages of older steps that were not taken, as far as they have arrived; while
  /// nobody moves bytes.
  /// @param give_up  called with the place of each, which it frees
  template <class GiveUp>
  void give_up_old(GiveUp const& give_up) {
    auto const end = arrived_.load(std::memory_order_acquire);
    for (; first_ < end && ring_[place(first_)].step < step_; ++first_)
      if (ring_[place(first_)].is_full.load(std::memory_order_relaxed)) give_up(place(first_));
  }

  // For who moves the bytes.

  /// @return whether the engine has freed the place of the next message
  [[nodiscard]] bool has_room() const noexcept {
    // Acquire: pairs with the release in `free`.
    return !ring_[place(added_)].is_full.load(std::memory_order_acquire);
  }
  /// @return whether a step is over, of which no message is needed; in exclusion of `drain`
  [[nodiscard]] bool is_over(std::uint32_t step) const noexcept { return step < step_; }
  /// Adds the next message, which begins to arrive. @return its place
  std::size_t add(std::uint32_t step) noexcept {
    auto const at = place(added_++);
    ring_[at].step = step;
    ring_[at].is_full.store(true, std::memory_order_relaxed);
    return at;
  }
  /// @return the place of the oldest message that was added and has not arrived; none where all
  /// have
  [[nodiscard]] std::optional<std::size_t> arriving() const noexcept {
    auto const number = arrived_.load(std::memory_order_relaxed);
    return number == added_ ? std::nullopt : std::optional(place(number));
  }
  /// Counts that one as arrived: all of it is here.
  void arrive() noexcept {
    auto const number = arrived_.load(std::memory_order_relaxed);
    if (notes_arrivals_) ring_[place(number)].arrived_at = std::chrono::steady_clock::now();
    // Release: the engine that sees the number sees the message.
    arrived_.store(number + 1, std::memory_order_release);
  }

 private:
  struct entry {
    std::uint32_t step = 0;
    std::atomic<bool> is_full{false};
    std::chrono::steady_clock::time_point arrived_at{};
  };

  [[nodiscard]] std::size_t place(std::uint64_t number) const noexcept {
    return number & (ring_.size() - 1);
  }
  [[nodiscard]] std::uint64_t number_of(std::int32_t sequence) const noexcept {
    return first_ + static_cast<std::uint32_t>(sequence);
  }

  // The engine writes these. Others read the step, in exclusion of `drain`.
  std::uint64_t first_ = 0;  // of this step
  std::uint32_t step_ = 0;
  bool notes_arrivals_;
  // Who moves the bytes writes these, and the engine reads the first.
  alignas(64) std::atomic<std::uint64_t> arrived_{0};
  std::uint64_t added_ = 0;
  std::vector<entry> ring_;  // its length is a power of two
};

}  // namespace zbpp
