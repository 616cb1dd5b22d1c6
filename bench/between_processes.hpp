// SPDX-License-Identifier: Apache-2.0
//
// One of two processes that exchange messages in turns: by the TCP transport, used as an engine
// uses it, or by bare Asio. Bare Asio has a connection for each direction, as the transport has,
// or one for both, whose acknowledgements travel with the answers.
#pragma once

#include "median.hpp"
#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/transport.hpp>

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::bench {

namespace net = boost::asio;

/// Ends the process, and says why.
[[noreturn]] inline void give_up(std::string const& why) {
  std::fprintf(stderr, "bench: %s\n", why.c_str());
  std::abort();
}

/// Says what is exchanged: rank 0 sends `writes` messages and gets one back, `turns` times.
struct exchange {
  std::size_t size = 0;  ///< of a message, in bytes
  int writes = 1;
  int turns = 1;

  /// @return how long a message takes there and back, for small ones
  [[nodiscard]] static exchange ping_pong(std::size_t size) { return {size, 1, 200}; }
  /// @return how many bytes a second, for large ones: at least 256 MB, or 4 messages, there
  [[nodiscard]] static exchange stream(std::size_t size) {
    auto const writes = std::clamp<std::size_t>((std::size_t{256} << 20) / size, 4, 64);
    return {size, static_cast<int>(writes), 1};
  }

  /// @return how much travels in a turn, in bytes
  [[nodiscard]] double volume() const { return static_cast<double>(size) * (writes + 1); }

  /// Does one rank's part of it, with what sends and receives one message and blocks meanwhile.
  template <class Send, class Receive>
  void run(int rank, Send send, Receive receive) const {
    for (int turn = 0; turn < turns; ++turn) {
      if (rank == 0) {
        for (int n = 0; n < writes; ++n) send();
        receive();
      } else {
        for (int n = 0; n < writes; ++n) receive();
        send();
      }
    }
  }
};

/// Holds the connections of a process: one there, from rank 0 to 1, and one back.
using connections = std::array<net::ip::tcp::socket, 2>;

/// @return the channels of the transport
[[nodiscard]] inline std::vector<channel> there_and_back(int writes) {
  return {{0, 1, 2, writes + 1}, {1, 0, 2, writes + 1}};
}

/// Is one of two processes that exchange messages as `what` says.
class side {
  using bare_socket = net::basic_stream_socket<net::ip::tcp, net::io_context::executor_type>;

 public:
  /// @param on_lost  called on the I/O thread `sockets`
  side(
      int rank,
      exchange const& what,
      asio::io_loop& sockets,
      connections of_transport,
      connections of_bare,
      asio::detail::lost_handler on_lost)
      : rank_(rank),
        what_(what),
        loop_(sockets),
        transport_(
            sockets,
            rank,
            there_and_back(what.writes),
            {static_cast<bytes>(what.size), static_cast<bytes>(what.size)},
            std::move(on_lost)),
        into_(what.size) {
    for (std::size_t way = 0; way < bare_.size(); ++way) {
      transport_.connect(static_cast<int>(way), std::move(of_transport[way]));
      auto const protocol = of_bare[way].local_endpoint().protocol();
      bare_[way].assign(protocol, sockets.exclusively([&] { return of_bare[way].release(); }));
      bare_[way].set_option(net::ip::tcp::no_delay(true));
    }
    transport_.bind(rank, memory_, &wakeup_);
    data_ = memory_.allocate(what.size);
    std::fill_n(data_.data(), what.size, std::byte{1});
  }

  /// Exchanges by the transport.
  void ours() {
    what_.run(
        rank_, [this] { send(); }, [this] { receive(); });
  }

  /// Exchanges by bare Asio with one connection for both directions, or with two.
  void bare(std::size_t count) {
    auto& back = bare_[count - 1];
    out_ = rank_ == 0 ? &bare_[0] : &back;
    in_ = rank_ == 0 ? &back : &bare_[0];
    turns_left_ = what_.turns;
    if (rank_ == 0)
      write_some(what_.writes);
    else
      read_some(what_.writes);
    io_.restart();
    io_.run();
  }

  /// @return the message that is sent
  [[nodiscard]] std::byte const* data() const { return data_.data(); }
  /// @return where messages of others than the transport go
  [[nodiscard]] std::byte* into() { return into_.data(); }

  void close() { transport_.close(); }

 private:
  void send() {
    transport_.send(rank_, message(data_), 0);
    ++sent_;
  }
  void receive() {
    auto const is_there = [this] { return transport_.arrival(1 - rank_, received_) == 0; };
    if (!is_there()) {
      transport_.flush();
      loop_.run_until(is_there);
    }
    static_cast<void>(transport_.take(1 - rank_, received_, 0));
    ++received_;
    // Each side answers what it has received, so the peer has consumed what was sent before.
    transport_.retire(rank_, sent_);
  }

  static void check(boost::system::error_code const& failure) {
    if (failure) give_up(failure.message());
  }
  void write_some(int count) {
    writes_left_ = count;
    write();
  }
  void read_some(int count) {
    reads_left_ = count;
    read();
  }
  void write() {
    net::async_write(
        *out_,
        net::buffer(data_.data(), data_.size()),
        [this](boost::system::error_code const& failure, std::size_t) {
          check(failure);
          if (--writes_left_ > 0) return write();
          if (rank_ == 0) return read_some(1);
          if (--turns_left_ > 0) read_some(what_.writes);
        });
  }
  void read() {
    net::async_read(
        *in_, net::buffer(into_), [this](boost::system::error_code const& failure, std::size_t) {
          check(failure);
          if (--reads_left_ > 0) return read();
          if (rank_ == 1) return write_some(1);
          if (--turns_left_ > 0) write_some(what_.writes);
        });
  }

  int rank_;
  exchange what_;
  asio::io_loop& loop_;
  arena memory_;
  wakeup wakeup_{0};
  asio::detail::tcp_transport transport_;
  net::io_context io_{1};
  std::array<bare_socket, 2> bare_{bare_socket(io_), bare_socket(io_)};
  bare_socket* out_ = nullptr;
  bare_socket* in_ = nullptr;
  buffer data_;
  std::vector<std::byte> into_;
  std::int32_t sent_ = 0;
  std::int32_t received_ = 0;
  int writes_left_ = 0;
  int reads_left_ = 0;
  int turns_left_ = 0;
};

/// Runs something and notes how long a turn took, in seconds.
template <class Act>
void time_turns(std::vector<double>& into, exchange const& what, Act act) {
  auto const start = std::chrono::steady_clock::now();
  act();
  std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
  into.push_back(took.count() / what.turns);
}

}  // namespace zbpp::bench
