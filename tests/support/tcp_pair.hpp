// SPDX-License-Identifier: Apache-2.0
//
// Two ranks of one process that are joined by real connections, each with its own io_loop, and what
// tests of sockets need so that they cannot hang.
#pragma once

#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/message.hpp>
#include <zbpp/runtime/transport.hpp>

#include <support/both_ends.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address_v4.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Ends the process when a test takes far too long; it would be stuck.
class stuck_guard {
 public:
  explicit stuck_guard(std::chrono::seconds most = std::chrono::seconds(100))
      : watch_([this, most] {
          std::unique_lock lock(mutex_);
          if (over_.wait_for(lock, most, [this] { return is_over_; })) return;
          std::fputs("the test is stuck\n", stderr);
          std::abort();
        }) {}
  ~stuck_guard() {
    {
      std::lock_guard const lock(mutex_);
      is_over_ = true;
    }
    over_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::jthread watch_;
};

/// Makes two sockets that are connected by loopback.
[[nodiscard]] inline std::pair<::boost::asio::ip::tcp::socket, ::boost::asio::ip::tcp::socket>
make_connection(::boost::asio::io_context& first, ::boost::asio::io_context& second) {
  namespace ip = ::boost::asio::ip;
  ::boost::asio::io_context here;
  ip::tcp::acceptor door(here, {ip::address_v4::loopback(), 0});
  std::pair ends{ip::tcp::socket(first), ip::tcp::socket(second)};
  ends.first.connect(door.local_endpoint());
  door.accept(ends.second);
  return ends;
}

/// Collects what transports say of lost channels.
class losses {
 public:
  [[nodiscard]] asio::detail::lost_handler handler() {
    return [this](int channel, std::string why) {
      std::lock_guard const lock(mutex_);
      all_.emplace_back(channel, std::move(why));
    };
  }
  [[nodiscard]] std::vector<std::pair<int, std::string>> all() const {
    std::lock_guard const lock(mutex_);
    return all_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<int, std::string>> all_;
};

/// Is both ends of the transports of two ranks that sockets join.
class tcp_pair : public both_ends<asio::detail::tcp_transport> {
 public:
  tcp_pair(std::vector<channel> const& channels, bytes largest, asio::tcp_settings settings = {})
      : both_ends(channels) {
    for (int rank : {0, 1})
      set_end(
          rank,
          std::make_unique<asio::detail::tcp_transport>(
              drivers_[detail::index(rank)],
              rank,
              channels,
              std::vector<bytes>(channels.size(), largest),
              lost.handler(),
              settings));
    for (std::size_t c = 0; c < channels.size(); ++c) {
      auto connection = make_connection(drivers_[0].io(), drivers_[1].io());
      end(0).connect(static_cast<int>(c), std::move(connection.first));
      end(1).connect(static_cast<int>(c), std::move(connection.second));
    }
  }
  tcp_pair(tcp_pair const&) = delete;
  tcp_pair& operator=(tcp_pair const&) = delete;
  ~tcp_pair() { clear_ends(); }  // before what they refer to

  [[nodiscard]] asio::io_loop& io_loop(int rank) { return drivers_[detail::index(rank)]; }

  losses lost;

 private:
  std::array<asio::io_loop, 2> drivers_;
};

}  // namespace zbpp::test
