// SPDX-License-Identifier: Apache-2.0
//
// Moves messages between processes: one TCP connection per channel. A send writes at once, in the
// engine's own thread, when the kernel and the receiver have room; the rest is up to the I/O
// thread. A lost connection is reported once a step needs it.
#pragma once

#include <zbpp/asio/detail/socket_fwd.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/pipeline_ranks.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/rank_transport.hpp>
#include <zbpp/runtime/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace zbpp::asio {

class control;
class rendezvous;

namespace detail {

class data_connector;
class incoming;
class outgoing;
struct channel_name;

/// Moves the messages of one rank.
///
/// All but `shut` is for the thread of the rank's engine, and not for handlers. Once `on_lost` was
/// called nothing arrives or leaves on that channel any more.
class tcp_transport : public rank_transport {
 public:
  /// Makes the ends of all channels that begin or end at `rank`; they are not connected yet.
  /// @param largest  the largest message of each channel in bytes, 0 where none is declared
  /// @param on_lost  called on the I/O thread, once per channel, when its connection is lost
  /// @param ranks    which ranks of the run are those of the channels, for the texts of errors
  /// @throws error (bad_argument), std::bad_alloc
  tcp_transport(
      io_loop& sockets,
      int rank,
      std::vector<channel> const& channels,
      std::vector<bytes> const& largest,
      lost_handler on_lost,
      tcp_settings const& settings = {},
      pipeline_ranks const& ranks = {});
  /// Closes all connections and waits until no handler refers to this; for a quarter of a second at
  /// most also until the peers have read what was sent. The io_loop must still exist.
  ~tcp_transport() override;

  /// Begins to use a connection for a channel that begins or ends here. The peer has been
  /// authenticated, and nothing that belongs to the channel was read from it or written to it.
  /// @throws error (bad_argument, io_failed)
  void connect(int channel, accepted_socket connected);

  /// Says where what arrives goes, and which wakeup to notify then. Sets blocks aside there.
  /// @param wake  may be null when nobody waits
  /// @throws error (bad_argument) for another rank, or a second time; std::bad_alloc
  void bind(int rank, arena& memory, wakeup* wake);
  /// Ships a message. Never blocks.
  /// @throws as `push`
  void send(int channel, message&& msg, ticks);
  /// Gives a message that has arrived, in memory of the receiving rank, and closes its slot.
  /// @throws std::bad_alloc
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes most);

  /// Writes pending data and credits as far as possible without blocking, or has the I/O thread do
  /// it where that is another. The engine calls it before it waits.
  void flush();
  /// Closes all connections, without calling `on_lost`.
  void close();
  /// As `close`, for the I/O thread: in a handler.
  void shut() noexcept;
  [[nodiscard]] io_loop& loop() const noexcept { return *loop_; }

 protected:
  /// Where something is not flushed the step has failed: from then on nothing is read or written,
  /// and the connections stay open until `close`, so that the peers can learn why before they
  /// notice.
  void release_all() override;
  void give_up(int channel, std::size_t place) override;

 private:
  [[nodiscard]] incoming* reverse_of(
      std::vector<channel> const& channels, std::size_t c) const noexcept;
  void linger();
  void park() noexcept;
  void progress();
  [[nodiscard]] bool is_pending() const noexcept;

  io_loop* loop_;
  tcp_settings settings_;
  lost_handler on_lost_;
  std::vector<std::unique_ptr<outgoing>> out_;  // by channel; null where it begins elsewhere
  std::vector<std::unique_ptr<incoming>> in_;   // by channel; null where it ends elsewhere
};

/// Keeps which channels of a rank have lost their connections, and why; used on the I/O thread.
struct lost_channels {
  std::vector<std::string> reasons;  ///< by channel; empty where the connection is there
};

/// Moves the messages of the rank of this process in a run, whose ranks connect for it.
class run_transport : private lost_channels, public tcp_transport {
 public:
  /// @param channels  between ranks of the pipeline
  /// @param largest   the largest message of each, as of `tcp_transport`
  /// @param wake      notified when a connection is lost; outlives this
  /// @param ranks     which ranks of the run are those of the pipeline
  run_transport(
      rendezvous& run,
      std::vector<channel> channels,
      std::vector<bytes> const& largest,
      wakeup& wake,
      tcp_settings const& settings,
      pipeline_ranks const& ranks);

  /// Connects the channels with the neighbours; blocks until they have come.
  /// @throws error, the failure of the run
  void connect();
  /// Runs socket handlers until the rank need not wait; see `asio::rank_wait`.
  template <class Wait>
  void wait(Wait const& until) {
    loop().run_until([&] {
      if (until.is_over() || until.has_stopped()) return true;
      // After that, since a last message and the end of its connection may arrive together.
      report_needed(until.channel());
      until.report_states();
      // If rank 0 has left, the report ended the run here; no other event would end this wait.
      return until.has_stopped();
    });
  }
  /// Reports a lost connection, if something has not left by it, or it is awaited; a rank that has
  /// all it needs may end before the others. Call only on the I/O thread.
  /// @param awaited  the channel whose message this rank waits for; none where it does not
  void report_needed(int awaited);

 private:
  control* control_;
  data_connector* connector_;
  std::vector<channel> channels_;  // between ranks of the run
};

}  // namespace detail
}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/tcp_transport.ipp>
#endif
