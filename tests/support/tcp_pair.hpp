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

/// Looks until something holds. @return whether it did in time
template <class Predicate>
[[nodiscard]] bool holds_soon(Predicate holds) {
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

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

/// Is both ends of the transports of two ranks; models `transport` for both.
class tcp_pair {
 public:
  static constexpr ticks not_yet = asio::detail::tcp_transport::not_yet;

  tcp_pair(std::vector<channel> const& channels, bytes largest, asio::tcp_settings settings = {})
      : channels_(channels), sent_(channels.size()) {
    for (int rank : {0, 1})
      ends_[detail::index(rank)] = std::make_unique<asio::detail::tcp_transport>(
          drivers_[detail::index(rank)],
          rank,
          channels,
          std::vector<bytes>(channels.size(), largest),
          lost.handler(),
          settings);
    for (std::size_t c = 0; c < channels.size(); ++c) {
      auto connection = make_connection(drivers_[0].io(), drivers_[1].io());
      ends_[0]->connect(static_cast<int>(c), std::move(connection.first));
      ends_[1]->connect(static_cast<int>(c), std::move(connection.second));
    }
  }

  void bind(int rank, arena& memory, wakeup* wake) { end(rank).bind(rank, memory, wake); }
  void post_receive(int channel, bytes most) { receiver(channel).post_receive(channel, most); }
  void send(int channel, message&& msg, ticks arrival) {
    ++sent_[detail::index(channel)];
    sender(channel).send(channel, std::move(msg), arrival);
  }
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const {
    return ends_[detail::index(channels_[detail::index(channel)].to)]->arrival(channel, sequence);
  }
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes most) {
    return receiver(channel).take(channel, sequence, most);
  }
  void retire(int channel, std::int32_t count) { sender(channel).retire(channel, count); }
  void abort() {
    for (auto const& one : ends_) one->abort();
  }
  /// Waits until all that was sent is there, as a step that succeeds does.
  void drain() {
    bool const is_quiet = holds_soon([this] {
      for (std::size_t c = 0; c < channels_.size(); ++c)
        if (sent_[c] > 0 && arrival(static_cast<int>(c), sent_[c] - 1) == not_yet) return false;
      return ends_[0]->is_flushed() && ends_[1]->is_flushed();
    });
    if (!is_quiet) throw std::runtime_error("messages were sent and did not arrive");
    for (auto const& one : ends_) one->drain();
    sent_.assign(sent_.size(), 0);
  }

  [[nodiscard]] asio::detail::tcp_transport& end(int rank) { return *ends_[detail::index(rank)]; }
  [[nodiscard]] asio::io_loop& io_loop(int rank) { return drivers_[detail::index(rank)]; }

  losses lost;

 private:
  [[nodiscard]] asio::detail::tcp_transport& sender(int channel) {
    return end(channels_[detail::index(channel)].from);
  }
  [[nodiscard]] asio::detail::tcp_transport& receiver(int channel) {
    return end(channels_[detail::index(channel)].to);
  }

  std::vector<channel> channels_;
  std::vector<std::int32_t> sent_;
  std::array<asio::io_loop, 2> drivers_;
  std::array<std::unique_ptr<asio::detail::tcp_transport>, 2> ends_;
};

}  // namespace zbpp::test
