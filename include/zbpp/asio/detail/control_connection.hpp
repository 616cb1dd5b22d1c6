// SPDX-License-Identifier: Apache-2.0
//
// A control connection: frames of a length (32 bits, bounded), a kind and a payload, both ways, and
// an end that loses nothing that was sent.
#pragma once

#include <zbpp/asio/detail/control_message.hpp>
#include <zbpp/asio/detail/handler_memory.hpp>
#include <zbpp/asio/detail/handshake.hpp>
#include <zbpp/asio/detail/host.hpp>
#include <zbpp/asio/detail/reason.hpp>
#include <zbpp/asio/detail/timers.hpp>
#include <zbpp/asio/rank_call.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/error.hpp>

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace zbpp::asio::detail {

class control_connection;

/// Is told what a control connection receives. Neither call may throw anything but `error`, which
/// ends the connection.
class connection_owner {
 public:
  /// A whole frame came.
  virtual void on_frame(
      control_connection& from, control_kind kind, std::span<std::byte const> payload) = 0;
  /// The connection is at its end, for good, without `close` having been called.
  virtual void on_lost(control_connection& from, std::string const& reason) = 0;

 protected:
  ~connection_owner() = default;
};

/// Sends and receives frames on an authenticated socket. Used on the I/O thread alone.
class control_connection : public std::enable_shared_from_this<control_connection> {
 public:
  using shared_bytes = std::shared_ptr<blob const>;

  /// @param most  the largest payload that is received; `expect` changes it
  control_connection(tcp::socket socket, connection_owner& owner, std::size_t most)
      : socket_(std::move(socket)),
        linger_(socket_.get_executor()),
        owner_(&owner),
        most_(most),
        name_(name_of_peer(socket_)) {
    boost::system::error_code ignored;
    address_ = plain_address(socket_.remote_endpoint(ignored).address());
  }

  /// Begins to receive.
  void start() { receive_header(); }

  /// Changes the largest payload that is received from the next frame on.
  void expect(std::size_t most) noexcept { most_ = most; }

  /// Sends a frame, after those sent before.
  void send(control_kind kind, shared_bytes payload) {
    if (is_ending_ || !socket_.is_open()) return;
    push(kind).payload = std::move(payload);
    if (outgoing_.size() == 1) write_first();
  }
  /// Sends a frame of at most `most_call` bytes; allocates nothing once as many were on their way.
  void send_small(control_kind kind, std::span<std::byte const> payload) {
    if (is_ending_ || !socket_.is_open()) return;
    auto& frame = push(kind);
    frame.small_size = std::min(payload.size(), frame.small.size());
    std::copy_n(payload.begin(), frame.small_size, frame.small.begin());
    if (outgoing_.size() == 1) write_first();
  }
  /// Sends a frame of its own.
  void send(control_kind kind, blob payload = {}) {
    send(kind, std::make_shared<blob const>(std::move(payload)));
  }
  /// @return whether frames wait to be written, so that another heartbeat would be of no use
  [[nodiscard]] bool is_behind() const noexcept { return !outgoing_.empty(); }

  /// Ends politely: the owner gets no further calls, what was sent is delivered if the other side
  /// still reads. A socket that is closed with unread input would take back what is under way, so
  /// this one is closed when the other side has closed, or after `linger`.
  void finish(std::chrono::milliseconds linger) {
    owner_ = nullptr;
    if (is_ending_ || !socket_.is_open()) return;
    is_ending_ = true;
    if (outgoing_.empty()) shut_down();
    linger_.expires_after(linger);
    linger_.async_wait(
        [self = shared_from_this()](boost::system::error_code const&) { self->close(); });
  }
  /// Has `finish` close when all is sent, where the other side does not read at present.
  void expect_no_reader() noexcept { has_reader_ = false; }
  /// Ends at once.
  void close() {
    owner_ = nullptr;
    boost::system::error_code ignored;
    socket_.close(ignored);
    linger_.cancel();
  }

  /// @return whether the socket is still open
  [[nodiscard]] bool is_open() const noexcept { return socket_.is_open(); }
  /// @return when a frame, or a piece of one, came last; or when it was made or last excused
  [[nodiscard]] steady::time_point heard() const noexcept { return heard_; }
  /// Counts as heard now, when it was this side that did not listen.
  void excuse(steady::time_point now) noexcept { heard_ = now; }
  /// @return the address at the other end
  [[nodiscard]] net::ip::address const& address() const noexcept { return address_; }
  /// @return address and port at the other end, for people
  [[nodiscard]] std::string const& name() const noexcept { return name_; }

 private:
  static constexpr std::size_t header_size = 5;
  static constexpr std::size_t piece = 64 * 1024;
  struct control_frame {
    control_kind kind{};
    shared_bytes payload;  // null where it is small
    std::array<std::byte, most_call> small{};
    std::size_t small_size = 0;
    std::array<std::byte, header_size> header{};
  };

  control_frame& push(control_kind kind) {
    if (spare_.empty()) spare_.emplace_back();
    outgoing_.splice(outgoing_.end(), spare_, spare_.begin());
    outgoing_.back().kind = kind;
    return outgoing_.back();
  }

  // One read is under way at a time.
  template <class Handler>
  [[nodiscard]] auto reader(Handler handler) {
    return net::bind_allocator(handler_allocator<std::byte>(read_memory_), std::move(handler));
  }

  // The handlers hold the connection: one whose owner has gone lives until its socket is closed.
  void receive_header() {
    net::async_read(
        socket_,
        net::buffer(header_),
        reader([self = shared_from_this()](boost::system::error_code const& failed, std::size_t) {
          self->go_on(failed, [&] {
            self->expected_ = self->checked_size(self->header_);
            self->payload_.clear();
            self->receive_payload();
          });
        }));
  }

  // A length is only a promise: memory grows with what has come. A peer that sends less than a
  // piece within the deadline of a heartbeat counts as silent.
  void receive_payload() {
    auto const at = payload_.size();
    if (at == expected_) {
      if (owner_ != nullptr)
        owner_->on_frame(*this, static_cast<control_kind>(header_[4]), payload_);
      if (payload_.capacity() > piece) payload_ = {};
      return receive_header();
    }
    payload_.resize(std::min(expected_, at + piece));
    net::async_read(
        socket_,
        net::buffer(payload_.data() + at, payload_.size() - at),
        reader([self = shared_from_this()](boost::system::error_code const& failed, std::size_t) {
          self->go_on(failed, [&] { self->receive_payload(); });
        }));
  }

  template <class Next>
  void go_on(boost::system::error_code const& failed, Next next) {
    if (failed)
      return lose(failed == net::error::eof ? "it closed the connection" : reason_of(failed));
    heard_ = steady::now();
    try {
      next();
    } catch (std::exception const& wrong) {
      lose(std::string("it sent an invalid frame: ") + reason_of(wrong));
    }
  }

  [[nodiscard]] std::size_t checked_size(std::span<std::byte const, header_size> header) const {
    wire_reader from(header);
    auto const size = from.get<std::uint32_t>();
    auto const kind = from.get<std::uint8_t>();
    if (size > most_)
      throw error(
          errc::bad_format,
          "a frame of " + std::to_string(size) + " bytes; at most " + std::to_string(most_) +
              " are expected there");
    if (kind > static_cast<std::uint8_t>(last_control_kind))
      throw error(errc::bad_format, "a frame of kind " + std::to_string(kind));
    return size;
  }

  void write_first() {
    auto& first = outgoing_.front();
    net::const_buffer payload(first.small.data(), first.small_size);
    if (first.payload != nullptr) payload = net::buffer(*first.payload);
    auto const size = static_cast<std::uint32_t>(payload.size());
    std::memcpy(first.header.data(), &size, sizeof(size));
    first.header[4] = static_cast<std::byte>(first.kind);
    std::array<net::const_buffer, 2> const parts{net::buffer(first.header), payload};
    net::async_write(
        socket_,
        parts,
        net::bind_allocator(
            handler_allocator<std::byte>(write_memory_),
            [self = shared_from_this()](boost::system::error_code const& failed, std::size_t) {
              if (failed) return;  // whoever receives finds out
              self->outgoing_.front().payload = nullptr;
              self->spare_.splice(self->spare_.end(), self->outgoing_, self->outgoing_.begin());
              if (!self->outgoing_.empty())
                self->write_first();
              else if (self->is_ending_)
                self->shut_down();
            }));
  }

  void shut_down() {
    if (!has_reader_) return close();
    boost::system::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }

  void lose(std::string const& reason) {
    auto* const owner = std::exchange(owner_, nullptr);
    close();
    if (owner != nullptr) owner->on_lost(*this, reason);
  }

  tcp::socket socket_;
  net::steady_timer linger_;
  connection_owner* owner_;
  std::size_t most_;
  net::ip::address address_;
  std::string name_;
  std::array<std::byte, header_size> header_{};  // of what is being received
  std::size_t expected_ = 0;
  blob payload_;
  std::list<control_frame> outgoing_;  // the first one is being written
  std::list<control_frame> spare_;     // that were written
  handler_memory write_memory_;
  handler_memory read_memory_;
  steady::time_point heard_ = steady::now();
  bool is_ending_ = false;
  bool has_reader_ = true;
};

}  // namespace zbpp::asio::detail
