// SPDX-License-Identifier: Apache-2.0
//
// Moves messages between processes: one TCP connection a channel. A send writes at once, in the
// engine's own thread, when the kernel and the receiver have room; the rest is up to the I/O
// thread.
#pragma once

#include <zbpp/asio/detail/channel_socket.hpp>
#include <zbpp/asio/detail/incoming.hpp>
#include <zbpp/asio/detail/outgoing.hpp>
#include <zbpp/asio/detail/timers.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/reason.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/transport.hpp>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/socket_base.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace zbpp::asio {

/// Sets how messages travel.
struct tcp_settings {
  bytes most = bytes{1} << 30;  ///< of a message whose size the plan does not declare
  int send_buffer = 0;          ///< of the kernel, in bytes; 0 leaves it to the kernel
  int receive_buffer = 0;       ///< of the kernel, in bytes; 0 leaves it to the kernel
};

/// Moves the messages of one rank. Models `transport`.
///
/// All but `shut` is for the thread of the rank's engine, and not for handlers. Once `on_lost` was
/// called nothing arrives or leaves on that channel any more.
class tcp_transport {
 public:
  static constexpr ticks not_yet = -1;

  /// Makes the ends of all channels that begin or end at `rank`; they are not connected yet.
  /// @param largest  the largest message of each channel in bytes, 0 where none is declared
  /// @param on_lost  called on the I/O thread, once a channel, when its connection is lost
  /// @throws error (bad_argument), std::bad_alloc
  tcp_transport(
      io_loop& sockets,
      int rank,
      std::vector<channel> const& channels,
      std::vector<bytes> const& largest,
      lost_handler on_lost,
      tcp_settings settings = {})
      : loop_(&sockets), rank_(rank), settings_(settings), on_lost_(std::move(on_lost)) {
    check(channels, largest);
    out_.resize(channels.size());
    in_.resize(channels.size());
    open_.resize(channels.size());
    for (std::size_t c = 0; c < channels.size(); ++c) {
      if (channels[c].to != rank) continue;
      in_[c] = std::make_unique<detail::incoming>(
          name(c, channels[c]), size_of(largest[c]), size_of(settings.most));
    }
    for (std::size_t c = 0; c < channels.size(); ++c) {
      if (channels[c].from != rank) continue;
      auto* reverse = reverse_of(channels, c);
      out_[c] = std::make_unique<detail::outgoing>(
          name(c, channels[c]),
          size_of(largest[c] > 0 ? largest[c] : settings.most),
          reverse == nullptr ? nullptr : reverse->given());
      if (reverse != nullptr) reverse->set_reverse(out_[c].get());
    }
    loop_->exclusively([this] {
      loop_->on_notify([](void* self) { static_cast<tcp_transport*>(self)->progress(); }, this);
    });
  }
  tcp_transport(tcp_transport const&) = delete;
  tcp_transport& operator=(tcp_transport const&) = delete;
  /// Closes all connections and waits until no handler refers to this; for a quarter of a second at
  /// most also until the peers have read what was sent. The io_loop must still exist.
  ~tcp_transport() {
    linger();
    loop_->exclusively([this] {
      shut();
      loop_->forget(this);
    });
    loop_->run_until([this] { return !is_pending(); });
  }

  /// Begins to use a connection for a channel that begins or ends here. The peer has been
  /// authenticated, and nothing that belongs to the channel was read from it or written to it.
  /// @throws error (bad_argument, io_failed)
  void connect(int channel, ::boost::asio::ip::tcp::socket connected) {
    auto const c = zbpp::detail::index(channel);
    zbpp::detail::require(
        channel >= 0 && c < out_.size() &&
            (out_[c] ? !out_[c]->was_connected() : in_[c] && !in_[c]->was_connected()),
        "a connection is the first one for a channel that begins or ends at this rank");
    detail::error_code failure;
    loop_->exclusively([&] {
      auto own = prepare(std::move(connected), failure);
      if (failure) return;
      if (out_[c])
        out_[c]->connect(std::move(own));
      else
        in_[c]->connect(std::move(own));
    });
    if (failure)
      throw error(
          errc::io_failed,
          "channel " + std::to_string(channel) +
              ": the connection cannot be used: " + detail::reason_of(failure));
  }

  /// Says where what arrives goes, and which wakeup to ring then. Sets blocks aside there.
  /// @param wake  may be null when nobody waits
  /// @throws error (bad_argument) for another rank, std::bad_alloc
  void bind(int rank, arena& memory, wakeup* wake) {
    zbpp::detail::require(
        rank == rank_ && memory_ == nullptr, "a tcp_transport is bound once, at its own rank");
    memory_ = &memory;
    wake_ = wake;
    loop_->exclusively([&] {
      for (auto const& in : in_)
        if (in) in->supply_first(memory, wake);
    });
  }

  /// Opens the next slot of a channel, `most` bytes large.
  void post_receive(int channel, bytes most) noexcept { open(channel, most); }

  /// Ships a message. Never blocks.
  /// @throws error (wrong_size) when it is larger than the channel allows; (bad_argument) when more
  ///         than channel.in_flight are not retired
  void send(int channel, message&& msg, ticks) {
    auto& out = *out_[zbpp::detail::index(channel)];
    out.push(std::move(msg));
    drive_once([&out] { out.pump(); });
  }

  /// @return 0 when a message has arrived, `not_yet` before
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const noexcept {
    return in_[zbpp::detail::index(channel)]->has_arrived(sequence) ? 0 : not_yet;
  }

  /// Gives a message that has arrived, in memory of the receiving rank, and closes its slot.
  /// @throws std::bad_alloc
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes most) {
    open(channel, -most);
    auto& in = *in_[zbpp::detail::index(channel)];
    bool is_urgent = false;
    auto msg = in.take(sequence, *memory_, is_urgent);
    if (is_urgent) drive_once([&in] { in.give_credit(0); });
    return msg;
  }

  /// Lets go of the messages of a channel before number `count`; for the sender, who knows that
  /// they were consumed.
  void retire(int channel, std::int32_t count) noexcept {
    out_[zbpp::detail::index(channel)]->retire(count);
  }

  /// Has written what can be, room for messages included; for an engine before it waits.
  void flush() {
    drive_once([this] { progress(); });
  }
  /// @return whether all that was sent is in the kernel, so that the step may end
  [[nodiscard]] bool is_flushed() const noexcept {
    for (auto const& out : out_)
      if (out && !out->is_flushed()) return false;
    return true;
  }
  /// @return the same of one channel that begins here
  [[nodiscard]] bool is_flushed(int channel) const noexcept {
    return out_[zbpp::detail::index(channel)]->is_flushed();
  }

  /// Wakes the engine; for a step that failed.
  void abort() noexcept { notify(wake_); }

  /// Lets go of all messages, closes all slots and starts counting anew. Messages of the peers'
  /// next step that are there already stay. Where something is not flushed the step has failed:
  /// from then on nothing is read or written, and the connections stay open until `close`, so that
  /// the peers can hear why before they notice.
  void drain() {
    loop_->exclusively([this] {
      if (!is_flushed()) park();
      for (std::size_t c = 0; c < out_.size(); ++c) {
        if (out_[c]) out_[c]->drain();
        if (in_[c]) in_[c]->drain();
        if (open_[c] != 0) open(static_cast<int>(c), -open_[c]);
      }
    });
  }

  /// Closes all connections, without calling `on_lost`.
  void close() {
    loop_->exclusively([this] { shut(); });
  }
  /// As `close`, for the I/O thread: in a handler.
  void shut() noexcept {
    for (auto const& out : out_)
      if (out) out->shut();
    for (auto const& in : in_)
      if (in) in->shut();
  }

 private:
  void check(std::vector<channel> const& channels, std::vector<bytes> const& largest) const {
    zbpp::detail::require(
        channels.size() == largest.size(), "a tcp_transport gets one largest size a channel");
    zbpp::detail::require(settings_.most > 0, "tcp_settings.most is above 0");
    for (auto size : largest)
      zbpp::detail::require(size >= 0, "the largest message of a channel has at least 0 bytes");
    for (auto const& c : channels)
      zbpp::detail::require(
          c.slots >= 0 && c.in_flight >= 0, "the depths of a channel are at least 0");
  }

  [[nodiscard]] static std::uint64_t size_of(bytes size) noexcept {
    return static_cast<std::uint64_t>(size);
  }
  [[nodiscard]] detail::channel_name name(std::size_t number, channel const& ends) const noexcept {
    return {static_cast<int>(number), ends, &on_lost_};
  }
  [[nodiscard]] detail::incoming* reverse_of(
      std::vector<channel> const& channels, std::size_t c) const noexcept {
    for (std::size_t other = 0; other < channels.size(); ++other)
      if (channels[other].from == channels[c].to && channels[other].to == channels[c].from)
        return in_[other].get();
    return nullptr;
  }

  // Takes the connection over from its type-erased executor, and has it behave.
  [[nodiscard]] detail::tcp_socket prepare(
      ::boost::asio::ip::tcp::socket connected, detail::error_code& failure) const {
    namespace net = ::boost::asio;
    detail::tcp_socket own(loop_->io().get_executor());
    auto const end = connected.local_endpoint(failure);
    if (failure) return own;
    auto const handle = connected.release(failure);
    if (failure) return own;
    own.assign(end.protocol(), handle, failure);
    if (failure) {
      ::close(handle);
      return own;
    }
    own.non_blocking(true, failure);
    if (!failure) own.set_option(net::ip::tcp::no_delay(true), failure);
    // Messages go one way only, so nothing carries the acknowledgements; those that the kernel
    // sends at once would delay the reader of each message. A kernel that refuses is as good, but
    // slower.
    int const off = 0;
    if (!failure) ::setsockopt(own.native_handle(), IPPROTO_TCP, TCP_QUICKACK, &off, sizeof(off));
    if (!failure && settings_.send_buffer > 0)
      own.set_option(net::socket_base::send_buffer_size(settings_.send_buffer), failure);
    if (!failure && settings_.receive_buffer > 0)
      own.set_option(net::socket_base::receive_buffer_size(settings_.receive_buffer), failure);
    return own;
  }

  // Who closes a connection on which something has come that he did not read, such as a credit,
  // takes back what the peer has not read yet.
  void linger() {
    loop_->exclusively([&] {
      for (auto const& out : out_) {
        if (!out) continue;
        out->pump();  // what was sent, and nobody has had the time to write
        out->finish();
      }
    });
    detail::run_for(*loop_, std::chrono::milliseconds(250), [&] {
      auto const is_open = [](auto const& out) { return out && out->is_open(); };
      return std::none_of(out_.begin(), out_.end(), is_open);
    });
  }

  void park() noexcept {
    for (auto const& out : out_)
      if (out) out->park();
    for (auto const& in : in_)
      if (in) in->park();
  }

  void open(int channel, bytes change) noexcept {
    open_[zbpp::detail::index(channel)] += change;
    memory_->count_edge(change);
  }

  // Has something done for the sockets at once, by this thread or by the one that drives.
  template <class Work>
  void drive_once(Work work) {
    if (!loop_->try_exclusively(work)) loop_->notify();
  }

  // Called on the I/O thread, after a notify.
  void progress() {
    for (auto const& out : out_)
      if (out) out->pump();
    for (auto const& in : in_)
      if (in) in->progress();
  }

  [[nodiscard]] bool is_pending() const noexcept {
    for (auto const& out : out_)
      if (out && out->is_pending()) return true;
    for (auto const& in : in_)
      if (in && in->is_pending()) return true;
    return false;
  }

  io_loop* loop_;
  int rank_;
  tcp_settings settings_;
  lost_handler on_lost_;
  std::vector<std::unique_ptr<detail::outgoing>>
      out_;                                            // by channel; null where it begins elsewhere
  std::vector<std::unique_ptr<detail::incoming>> in_;  // by channel; null where it ends elsewhere
  std::vector<bytes> open_;  // by channel: of slots whose message was not taken
  arena* memory_ = nullptr;
  wakeup* wake_ = nullptr;
};

}  // namespace zbpp::asio
