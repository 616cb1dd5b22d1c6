// SPDX-License-Identifier: Apache-2.0
//
// What transports with one rank per process share, for authors of transports: all that is not about
// bytes. docs/own_wire.md shows one.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/message_rings.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp {

/// The base of a transport that moves the messages of one rank. With `send` and `take` it models
/// `multi_step_transport`, `acknowledging_transport` and `clocked_transport`:
///
/// ```cpp
/// void send(int channel, message&& msg, ticks) {
///   push(channel, std::move(msg));
///   // ... now or later: for each place = *sent(channel)->next() its bytes leave, and
///   //     begin() and deliver() count it
/// }
/// [[nodiscard]] message take(int channel, std::int32_t sequence, bytes most) {
///   auto const place = close_slot(channel, sequence, most);
///   // ... makes the message in memory() of the bytes that arrived at that place,
///   //     and received(channel)->free(place) lets others arrive there
/// }
/// ```
///
/// Where bytes come, `add` of `received(channel)` gives them a place, `arrive` shows them to the
/// engine, and `wake()` wakes it where it sleeps. All but these calls is for the engine's thread.
class rank_transport {
 public:
  static constexpr ticks not_yet = -1;

  rank_transport(rank_transport const&) = delete;
  rank_transport& operator=(rank_transport const&) = delete;
  virtual ~rank_transport() = default;

  /// Says where what arrives goes, and which wakeup to notify then.
  /// @param wake  may be null when nobody waits
  /// @throws error (bad_argument) for another rank, or a second time
  void bind(int rank, arena& memory, wakeup* wake) {
    detail::require(
        rank == rank_ && memory_ == nullptr, "a transport is bound once, at its own rank");
    memory_ = &memory;
    wake_ = wake;
  }
  /// Opens the next slot of a channel, `most` bytes large.
  void post_receive(int channel, bytes most) noexcept { open(channel, most); }
  /// @return 0 when a message has arrived, `not_yet` before
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const noexcept {
    return received(channel)->has_arrived(sequence) ? 0 : not_yet;
  }
  [[nodiscard]] bool have_arrived(int channel, std::int32_t count) const noexcept {
    return arrival(channel, count - 1) != not_yet;
  }
  /// @return when a message arrived that is not taken
  [[nodiscard]] std::chrono::steady_clock::time_point arrived_at(
      int channel, std::int32_t sequence) const noexcept {
    return received(channel)->arrived_at(sequence);
  }
  /// @return how many messages of a channel were taken in this step
  [[nodiscard]] std::int32_t taken(int channel) const noexcept { return end(channel).taken; }

  /// Releases the messages of a channel before number `count`, which the sender knows are consumed.
  void retire(int channel, std::int32_t count) noexcept { sent(channel)->retire(count); }
  /// Does nothing: what is delivered is released, as the receiver has room for it.
  static void acknowledge(int /*channel*/, std::int32_t /*count*/) noexcept {}
  [[nodiscard]] bool is_released(int channel, std::int32_t count) const noexcept {
    return sent(channel)->has_delivered(count);
  }
  /// @return whether all that was sent is delivered, so that the step may end
  [[nodiscard]] bool is_flushed() const noexcept;
  [[nodiscard]] bool is_flushed(int channel) const noexcept { return sent(channel)->is_flushed(); }

  /// Has another object carry the states of gradients; it must outlive this one's use.
  void link_states(state_link& states) noexcept { states_ = &states; }
  [[nodiscard]] state_link& states() noexcept { return *states_; }
  /// Does nothing: `begin_step` releases what was not taken.
  static void discard(int /*channel*/, std::int32_t /*count*/) noexcept {}
  /// Does nothing: no peer waits for it.
  static void end_step(int /*rank*/) noexcept {}
  /// Begins the next step, or the same one again: releases all messages, closes all slots and
  /// counts from 0. Messages of the peers' next step that are here already stay.
  /// @return false while something that was sent has not left
  [[nodiscard]] bool begin_step(int rank);
  /// Wakes the engine; for a step that failed.
  void abort() noexcept { wake(); }
  /// Ends a run, also one that failed: as `begin_step`.
  void drain();

  // What `asio::process_executor` asks for besides; a transport that has to do something hides it.

  /// Connects with the peers; blocks until they have come.
  static void connect() noexcept {}
  /// Has pending data leave, as far as that does not block. Called before a rank waits.
  static void flush() noexcept {}
  /// Lets messages go on while the engine runs a pass, as far as that takes no memory of the arena.
  /// Called by another thread, and only where the backend has a `poll_interval`.
  static void poll_aside() noexcept {}
  /// Closes all connections, once the run has failed and every rank knows why.
  static void close() noexcept {}

 protected:
  /// Makes the rings of all channels that begin or end at `rank`.
  /// @param largest     the largest message of each channel in bytes, 0 where none is declared
  /// @param undeclared  bytes of a message whose size is not declared
  /// @param notes_arrivals  whether `arrived_at` is going to be asked
  /// @throws error (bad_argument), std::bad_alloc
  rank_transport(
      int rank,
      std::vector<channel> const& channels,
      std::vector<bytes> const& largest,
      bytes undeclared = bytes{1} << 30,
      bool notes_arrivals = false);

  [[nodiscard]] int channels() const noexcept { return static_cast<int>(ends_.size()); }
  /// @return what is known of a channel that begins here; null where it begins elsewhere
  [[nodiscard]] sent_ring* sent(int channel) const noexcept { return end(channel).sent.get(); }
  /// @return what is known of a channel that ends here; null where it ends elsewhere
  [[nodiscard]] received_ring* received(int channel) const noexcept {
    return end(channel).received.get();
  }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// @return where what arrives goes; only once `bind` was called
  [[nodiscard]] arena& memory() const noexcept { return *memory_; }
  [[nodiscard]] bool is_bound() const noexcept { return memory_ != nullptr; }
  /// Wakes the engine, from any thread.
  void wake() const noexcept { notify(wake_); }

  /// Takes a message to send, an object as the bytes that its serializer makes of it.
  /// @throws error (wrong_size) when it is larger than the channel allows; (bad_argument) when more
  ///         than channel.in_flight are not retired, or an object has no serializer
  void push(int channel, message&& msg) {
    if (msg.has_object() && msg.size() == 0) msg = msg.held_object().to_bytes();
    sent(channel)->push(std::move(msg));
  }
  /// Closes the slot of a message that is taken now. @return its place
  [[nodiscard]] std::size_t close_slot(int channel, std::int32_t sequence, bytes most) noexcept {
    open(channel, -most);
    ++end(channel).taken;
    return received(channel)->place_of(sequence);
  }

  /// Waits by calling `poll` of a transport: for a while without a rest, then with a sleep between.
  /// For its `wait(until)`. A longer `spin` takes the core from ranks that share it.
  template <class Transport, class Wait>
  static void poll_until(
      Transport& asked,
      Wait const& until,
      std::chrono::microseconds spin = std::chrono::microseconds(50)) {
    auto const end_of_spin = std::chrono::steady_clock::now() + spin;
    bool is_spinning = true;
    for (asked.poll(); !until.is_over(); asked.poll()) {
      if (is_spinning) {
        std::this_thread::yield();  // another thread or process has the core meanwhile
        is_spinning = std::chrono::steady_clock::now() < end_of_spin;
      } else {
        until.poll_states();
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  }

  /// Releases all messages, closes all slots and begins the next step; for `begin_step` and
  /// `drain`. A transport whose bytes are moved by another thread calls it while that does not.
  virtual void release_all();
  /// Gives up a message that was not taken, and frees its place.
  virtual void give_up(int channel, std::size_t place) { received(channel)->free(place); }

 private:
  struct channel_end {
    std::unique_ptr<sent_ring> sent;
    std::unique_ptr<received_ring> received;
    bytes open = 0;          // of slots whose message was not taken
    std::int32_t taken = 0;  // in this step
  };

  [[nodiscard]] channel_end& end(int channel) noexcept { return ends_[detail::index(channel)]; }
  [[nodiscard]] channel_end const& end(int channel) const noexcept {
    return ends_[detail::index(channel)];
  }
  void open(int channel, bytes change) noexcept {
    end(channel).open += change;
    memory_->count_edge(change);
  }

  int rank_;
  std::vector<channel_end> ends_;  // by channel
  arena* memory_ = nullptr;
  wakeup* wake_ = nullptr;
  state_link* states_ = nullptr;  // null where ranks exchange none
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/rank_transport.ipp>
#endif
