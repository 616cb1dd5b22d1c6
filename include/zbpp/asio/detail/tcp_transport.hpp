// SPDX-License-Identifier: Apache-2.0
//
// Moves messages between processes: one TCP connection per channel. A send writes at once, in the
// engine's own thread, when the kernel and the receiver have room; the rest is up to the I/O
// thread. A lost connection is reported once a step needs it.
#pragma once

#include <zbpp/asio/detail/socket_fwd.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace zbpp::asio {

class control;
class io_loop;
class rendezvous;

namespace detail {

class data_connector;
class incoming;
class outgoing;
struct channel_name;

/// Moves the messages of one rank. Models `transport`.
///
/// All but `shut` is for the thread of the rank's engine, and not for handlers. Once `on_lost` was
/// called nothing arrives or leaves on that channel any more.
class tcp_transport {
 public:
  static constexpr ticks not_yet = -1;

  /// Makes the ends of all channels that begin or end at `rank`; they are not connected yet.
  /// @param largest  the largest message of each channel in bytes, 0 where none is declared
  /// @param on_lost  called on the I/O thread, once per channel, when its connection is lost
  /// @param bound_as  what `bind` calls the rank, where that is not `rank`
  /// @throws error (bad_argument), std::bad_alloc
  tcp_transport(
      io_loop& sockets,
      int rank,
      std::vector<channel> const& channels,
      std::vector<bytes> const& largest,
      lost_handler on_lost,
      tcp_settings settings = {},
      std::optional<int> bound_as = {});
  tcp_transport(tcp_transport const&) = delete;
  tcp_transport& operator=(tcp_transport const&) = delete;
  /// Closes all connections and waits until no handler refers to this; for a quarter of a second at
  /// most also until the peers have read what was sent. The io_loop must still exist.
  ~tcp_transport();

  /// Begins to use a connection for a channel that begins or ends here. The peer has been
  /// authenticated, and nothing that belongs to the channel was read from it or written to it.
  /// @throws error (bad_argument, io_failed)
  void connect(int channel, accepted_socket connected);

  /// Says where what arrives goes, and which wakeup to notify then. Sets blocks aside there.
  /// @param wake  may be null when nobody waits
  /// @throws error (bad_argument) for another rank, std::bad_alloc
  void bind(int rank, arena& memory, wakeup* wake);

  /// Opens the next slot of a channel, `most` bytes large.
  void post_receive(int channel, bytes most) noexcept { open(channel, most); }

  /// Ships a message, an object as the bytes that its serializer makes of it. Never blocks.
  /// @throws error (wrong_size) when it is larger than the channel allows; (bad_argument) when more
  ///         than channel.in_flight are not retired, or an object has no serializer
  void send(int channel, message&& msg, ticks);

  /// @return 0 when a message has arrived, `not_yet` before
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const noexcept;
  [[nodiscard]] bool have_arrived(int channel, std::int32_t count) const noexcept {
    return arrival(channel, count - 1) != not_yet;
  }

  /// @return when all of a message was read: one not taken, where `records_messages` is set
  [[nodiscard]] std::chrono::steady_clock::time_point arrived_at(
      int channel, std::int32_t sequence) const noexcept;

  /// Gives a message that has arrived, in memory of the receiving rank, and closes its slot.
  /// @throws std::bad_alloc
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes most);

  [[nodiscard]] std::int32_t taken(int channel) const noexcept {
    return taken_[zbpp::detail::index(channel)];
  }

  /// Releases the messages of a channel before number `count`, which the sender knows are consumed.
  void retire(int channel, std::int32_t count) noexcept;

  /// Does nothing: what is in the kernel is released, and the receiver has room for all of it.
  static void acknowledge(int /*channel*/, std::int32_t /*count*/) noexcept {}
  [[nodiscard]] bool is_released(int channel, std::int32_t count) const noexcept;

  /// Writes pending data and credits as far as possible without blocking, or has the I/O thread do
  /// it where that is another. The engine calls it before it waits.
  void flush();
  /// @return whether all that was sent is in the kernel, so that the step may end
  [[nodiscard]] bool is_flushed() const noexcept;
  [[nodiscard]] bool is_flushed(int channel) const noexcept;

  /// Sets what carries the states of gradients, which this then flushes, drains and closes, too;
  /// both outlive the use of this.
  void link_states(state_link& states, tcp_transport& transport) noexcept {
    states_ = &states;
    states_transport_ = &transport;
  }
  [[nodiscard]] state_link& states() noexcept { return *states_; }
  /// Does nothing: `begin_step` releases what was not taken.
  static void discard(int /*channel*/, std::int32_t /*count*/) noexcept {}
  /// Does nothing: no peer waits for it.
  static void end_step(int /*rank*/) noexcept {}
  /// Begins the next step, or the same one again: as `drain`.
  /// @return false while something that was sent has not left
  [[nodiscard]] bool begin_step(int rank);

  /// Wakes the engine; for a step that failed.
  void abort() noexcept { notify(wake_); }

  /// Releases all messages, closes all slots and starts counting again. Messages of the peers' next
  /// step that are there already stay. Where something is not flushed the step has failed: from
  /// then on nothing is read or written, and the connections stay open until `close`, so that the
  /// peers can learn why before they notice.
  void drain();

  /// Closes all connections, without calling `on_lost`.
  void close();
  /// As `close`, for the I/O thread: in a handler.
  void shut() noexcept;

 private:
  void check(std::vector<channel> const& channels, std::vector<bytes> const& largest) const;

  [[nodiscard]] static std::uint64_t size_of(bytes size) noexcept {
    return static_cast<std::uint64_t>(size);
  }
  [[nodiscard]] channel_name name(std::size_t number, channel const& ends) const noexcept;
  [[nodiscard]] incoming* reverse_of(
      std::vector<channel> const& channels, std::size_t c) const noexcept;

  void linger();
  void park() noexcept;
  void open(int channel, bytes change) noexcept {
    open_[zbpp::detail::index(channel)] += change;
    memory_->count_edge(change);
  }

  void progress();
  [[nodiscard]] bool is_pending() const noexcept;

  io_loop* loop_;
  int rank_;  // as `bind` calls it
  tcp_settings settings_;
  lost_handler on_lost_;
  std::vector<std::unique_ptr<outgoing>> out_;  // by channel; null where it begins elsewhere
  std::vector<std::unique_ptr<incoming>> in_;   // by channel; null where it ends elsewhere
  std::vector<bytes> open_;                     // by channel: of slots whose message was not taken
  std::vector<std::int32_t> taken_;             // by channel, in this step
  arena* memory_ = nullptr;
  wakeup* wake_ = nullptr;
  // Null where ranks exchange no states; for the engine's thread alone.
  state_link* states_ = nullptr;
  tcp_transport* states_transport_ = nullptr;
};

/// Keeps the connections of a rank. It must not move once a transport is made.
class channel_links {
 public:
  /// @param channels  between ranks of the pipeline
  /// @param ranks     which ranks of the run those are
  /// @param wake      notified when a connection is lost
  channel_links(
      rendezvous& run, wakeup& wake, std::vector<channel> channels, pipeline_ranks const& ranks);
  channel_links(channel_links const&) = delete;
  channel_links& operator=(channel_links const&) = delete;
  ~channel_links() = default;

  /// @return what moves the messages; not connected yet
  [[nodiscard]] std::unique_ptr<tcp_transport> make_transport(
      std::vector<bytes> const& largest, tcp_settings const& settings);
  /// Connects it with those of the neighbours; blocks until they have come.
  /// @throws error, the failure of the run
  void connect(tcp_transport& transport);
  /// Reports a lost connection, if something has not left by it, or it is awaited; a rank that has
  /// all it needs may end before the others. Call only on the I/O thread.
  /// @param awaited  the channel whose message this rank waits for; none where it does not
  void report_needed(int awaited);
  [[nodiscard]] io_loop& loop() const noexcept;
  /// @return what was connected; null before
  [[nodiscard]] tcp_transport* transport() const noexcept { return transport_; }

 private:
  control* control_;
  data_connector* connector_;
  wakeup* wake_;
  int rank_;                       // of this process in the pipeline
  std::vector<channel> channels_;  // between ranks of the run
  std::vector<std::string> lost_;  // by channel: why it is; touched on the I/O thread
  tcp_transport* transport_ = nullptr;
};

}  // namespace detail
}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/tcp_transport.ipp>
#endif
