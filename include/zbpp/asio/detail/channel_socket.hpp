// SPDX-License-Identifier: Apache-2.0
//
// One end of a channel's connection: a socket that never blocks, and at most one wait for each
// direction, in memory that is there from the start.
#pragma once

#include <zbpp/asio/detail/control_message.hpp>
#include <zbpp/asio/detail/handler_memory.hpp>
#include <zbpp/asio/detail/lost_handler.hpp>
#include <zbpp/asio/detail/reason.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace zbpp::asio::detail {

namespace net = ::boost::asio;
using ::boost::system::error_code;

/// Is a socket without the costs of a type-erased executor.
using tcp_socket = net::basic_stream_socket<net::ip::tcp, net::io_context::executor_type>;

/// At most so many bytes are moved by a system call: few enough to be in the cache still when the
/// other process copies them on (bench/bench_asio.cpp, stream).
inline constexpr std::size_t most_moved = std::size_t{64} << 10;

/// Holds what both ends of a channel know of it.
struct channel_name {
  int number;
  channel ends;
  lost_handler const* on_lost;
};

/// Carries an end of a channel. All of it is for the I/O thread.
/// @tparam Owner  has `on_readable()` and `on_writable()`
template <class Owner>
class channel_socket {
 public:
  channel_socket(channel_name const& name, Owner& owner) noexcept : name_(name), owner_(&owner) {}
  channel_socket(channel_socket const&) = delete;
  channel_socket& operator=(channel_socket const&) = delete;

  void open(tcp_socket&& connected) { socket_.emplace(std::move(connected)); }
  [[nodiscard]] bool was_opened() const noexcept { return socket_.has_value(); }
  [[nodiscard]] bool is_open() const noexcept {
    return socket_ && socket_->is_open() && !is_parked_;
  }
  /// Leaves the socket alone from now on without closing it, so that the peer notices nothing.
  void park() noexcept {
    error_code ignored;
    if (is_open()) socket_->cancel(ignored);
    is_parked_ = true;
  }
  /// Closes the socket; a wait that is under way ends soon, without a call.
  void shut() noexcept {
    error_code ignored;
    if (socket_) socket_->close(ignored);
  }
  /// Says that nothing more will be written. The peer closes once it has read everything, and then
  /// nobody is told that the connection was lost.
  void finish() noexcept {
    error_code ignored;
    if (is_open()) socket_->shutdown(net::socket_base::shutdown_send, ignored);
    is_finished_ = true;
  }
  /// Closes the socket and says why. Nobody calls the owner from then on.
  void lose(std::string const& why) {
    if (!is_open()) return;
    shut();
    if (is_finished_) return;
    (*name_.on_lost)(
        name_.number,
        "channel " + std::to_string(name_.number) + " from rank " +
            std::to_string(name_.ends.from) + " to rank " + std::to_string(name_.ends.to) + ": " +
            why);
  }

  /// Writes some of the bytes, without waiting.
  /// @return how many; none when the kernel has no room or the connection was lost
  template <class Buffers>
  [[nodiscard]] std::size_t write(Buffers const& from) {
    error_code failure;
    auto const count = socket_->write_some(from, failure);
    if (failure && failure != net::error::would_block)
      lose("writing failed: " + reason_of(failure));
    return count;
  }
  /// Reads some bytes, without waiting.
  /// @return how many; none when there are none or the connection was lost
  template <class Buffers>
  [[nodiscard]] std::size_t read(Buffers const& to) {
    error_code failure;
    auto const count = socket_->read_some(to, failure);
    if (failure == net::error::eof)
      lose("the peer closed the connection before the run ended");
    else if (failure && failure != net::error::would_block)
      lose("reading failed: " + reason_of(failure));
    return count;
  }

  /// Calls the owner once there is something to read; it may ask again at any time.
  void await_readable() { await<&Owner::on_readable>(net::socket_base::wait_read, reading_); }
  /// Calls the owner once there is room to write; it may ask again at any time.
  void await_writable() { await<&Owner::on_writable>(net::socket_base::wait_write, writing_); }
  /// @return whether `on_writable` is going to be called
  [[nodiscard]] bool awaits_writable() const noexcept { return writing_.is_pending; }
  /// @return whether a wait is under way; this object has to live until it is over
  [[nodiscard]] bool is_pending() const noexcept {
    return reading_.is_pending || writing_.is_pending;
  }

 private:
  struct wait_state {
    handler_memory memory;
    bool is_pending = false;
  };
  template <void (Owner::*call)()>
  struct wait_handler {
    channel_socket* self;
    wait_state* state;
    // What went wrong, if anything, shows when the owner reads or writes.
    void operator()(error_code const&) const {
      state->is_pending = false;
      if (!self->is_open()) return;
      try {
        (self->owner_->*call)();
      } catch (std::exception const& e) {
        self->lose(reason_of(e));
      }
    }
  };

  template <void (Owner::*call)()>
  void await(net::socket_base::wait_type what, wait_state& state) {
    if (state.is_pending || !is_open()) return;
    state.is_pending = true;
    socket_->async_wait(
        what,
        net::bind_allocator(
            handler_allocator<void>(state.memory), wait_handler<call>{this, &state}));
  }

  channel_name name_;
  Owner* owner_;
  std::optional<tcp_socket> socket_;
  bool is_parked_ = false;
  bool is_finished_ = false;
  wait_state reading_;
  wait_state writing_;
};

}  // namespace zbpp::asio::detail
