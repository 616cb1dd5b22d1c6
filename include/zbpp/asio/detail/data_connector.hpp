// SPDX-License-Identifier: Apache-2.0
//
// How the data connections of a rank are made.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/listener.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/program.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

// The first bytes of a data connection: which channel of which run it is for.

/// Says what a data connection is for; its first bytes.
struct link_request {
  std::array<std::byte, 16> run_id{};
  std::uint32_t number = 0;  ///< of the set of channels: a pipeline's first, second, ...
  std::int32_t from = 0;
  std::int32_t to = 0;

  static constexpr std::size_t size = 28;  ///< in bytes

  /// Names what its bytes are.
  template <class Wire>
  friend void fields(Wire& wire, wire_value<Wire, link_request>& link) {
    wire.plain(link.run_id).number(link.number).number(link.from).number(link.to);
  }
};

// Makes the data connections of a rank: it connects to the ranks that it sends to, and accepts
// those that send to it. A connection says first which channel it is for.

/// Connects a rank to those it exchanges messages with, on the thread that calls `control`.
class data_connector {
  using tcp = ::boost::asio::ip::tcp;

 public:
  /// Accepts connections from now on; `by` outlives it.
  explicit data_connector(control& by)
      : control_(&by), here_(std::make_shared<pending_connections>()) {
    here_->run_id = by.everybody().run_id;
    by.on_data_connection([pending_connections = here_](tcp::socket socket) {
      pending_connections->accept(std::move(socket), pending_connections);
    });
  }
  data_connector(data_connector const&) = delete;
  data_connector& operator=(data_connector const&) = delete;
  ~data_connector() { control_->on_data_connection(nullptr); }

  /// Connects every channel that begins or ends at this rank; all ranks do the same in the same
  /// order. Blocks until all of them are there.
  /// @return a socket for each channel, closed for those of other ranks
  /// @throws error, the failure of the run: (peer_failed) when a rank does not come in time
  [[nodiscard]] std::vector<tcp::socket> connect(std::vector<channel> const& channels) {
    // This notices ranks that have left already, so that nobody waits for them.
    control_->collect(collective::barrier);
    auto const number = next_++;
    auto& by = control_->loop();
    calls all;
    auto const refused = by.exclusively([&] {
      all = call_all(channels, number);
      return control_->data_listener().counts().failed;
    });
    std::vector<tcp::socket> sockets;
    auto const why = wait_for_all(channels, number, all, refused);
    by.exclusively([&] {
      for (auto const& c : all) c->is_over = true;
      if (why.empty()) sockets = collect(channels, number, all);
      for (auto const& c : all) c->close();
    });
    control_->check();
    if (!why.empty()) {
      static_cast<void>(control_->settle(
          rank_failure{{control_->rank(), -1, -1, -1}, {}, errc::peer_failed, why}));
      control_->check();
    }
    return sockets;
  }

 private:
  // One connection to be made to another rank.
  struct call {
    explicit call(::boost::asio::io_context& io) : socket(io), resolver(io), pause(io) {}
    void close() {
      boost::system::error_code ignored;
      socket.close(ignored);
      resolver.cancel();
      pause.cancel();
    }

    tcp::socket socket;
    tcp::resolver resolver;
    ::boost::asio::steady_timer pause;
    roster_entry to;
    blob request;
    std::string reason;  // why the last attempt failed
    std::string state;   // of the attempt under way
    bool is_done = false;
    bool is_over = false;
  };
  using calls = std::vector<std::shared_ptr<call>>;

  // Why connections are missing; empty where none is.
  struct gaps {
    std::string to_others;
    std::string from_others;
  };

  // One connection that another rank made.
  struct incoming_connection {
    link_request request;
    tcp::socket socket;
    bool is_expected = false;  // and its rank knows
  };

  // What the coroutines of accepted connections share with the data_connector.
  struct pending_connections {
    std::array<std::byte, 16> run_id{};
    std::list<incoming_connection> all;

    static void accept(tcp::socket socket, std::shared_ptr<pending_connections> const& pending) {
      auto const executor = socket.get_executor();
      ::boost::asio::co_spawn(executor, ask(std::move(socket), pending), ::boost::asio::detached);
    }
    [[nodiscard]] auto find(link_request const& request) {
      return std::ranges::find_if(all, [&](incoming_connection const& g) {
        return g.request.number == request.number && g.request.from == request.from &&
               g.request.to == request.to;
      });
    }
  };

  // Reads what a connection is for. Closes one of another run; a second one replaces the first
  // until that is expected.
  static ::boost::asio::awaitable<void> ask(
      tcp::socket socket, std::shared_ptr<pending_connections> pending) {
    std::array<std::byte, link_request::size> bytes{};
    try {
      auto const into = ::boost::asio::buffer(bytes);
      co_await ::boost::asio::async_read(socket, into, ::boost::asio::use_awaitable);
      auto const request = read<link_request>(bytes);
      if (request.run_id != pending->run_id) co_return;
      auto const before = pending->find(request);
      if (before == pending->all.end())
        pending->all.push_back({request, std::move(socket)});
      else if (!before->is_expected)
        before->socket = std::move(socket);  // it has tried again
    } catch (std::exception const&) {
      // It is gone; its rank tries again.
    }
  }

  // Connects to another rank, again and again, until that accepts.
  static ::boost::asio::awaitable<void> dial(
      std::shared_ptr<call> attempt, run_token const& token) {
    namespace net = ::boost::asio;
    auto const wait = net::use_awaitable;
    for (auto pause = std::chrono::milliseconds(10); !attempt->is_over;
         pause = std::min(pause * 2, std::chrono::milliseconds(1000))) {
      try {
        attempt->state = "no answer; a firewall may drop what is sent there";
        std::vector<tcp::endpoint> places;
        boost::system::error_code is_name;
        auto const address = net::ip::make_address(attempt->to.host, is_name);
        if (is_name) {
          auto const port = std::to_string(attempt->to.port);
          auto const found = co_await attempt->resolver.async_resolve(attempt->to.host, port, wait);
          for (auto const& entry : found) places.push_back(entry.endpoint());
        } else {
          places.emplace_back(address, attempt->to.port);  // Asio resolves in a thread of its own
        }
        // Where it cannot open a socket, async_connect says only that it was aborted.
        attempt->socket.open(places.front().protocol());
        co_await net::async_connect(attempt->socket, places, wait);
        attempt->socket.set_option(tcp::no_delay(true));
        attempt->state = "it does not accept the connection; it may be stopped or overloaded";
        co_await introduce(attempt->socket, token, link_purpose::data);
        auto const opening = net::buffer(attempt->request);
        co_await net::async_write(attempt->socket, opening, wait);
        attempt->state = "it has not answered yet; it may not have made its pipeline";
        std::byte yes{};
        auto const into = net::buffer(&yes, 1);
        co_await net::async_read(attempt->socket, into, wait);
        attempt->is_done = true;
        co_return;
      } catch (std::exception const& failed) {
        attempt->reason = reason_of(failed);
      }
      if (attempt->is_over) co_return;
      boost::system::error_code ignored;
      attempt->socket.close(ignored);
      attempt->pause.expires_after(pause);
      try {
        co_await attempt->pause.async_wait(wait);
      } catch (std::exception const&) {
        co_return;
      }
    }
  }

  [[nodiscard]] link_request request_of(channel const& c, std::uint32_t number) const {
    return {here_->run_id, number, c.from, c.to};
  }

  // Begins to connect to every rank that this one sends to. Call only on the I/O thread.
  [[nodiscard]] calls call_all(std::vector<channel> const& channels, std::uint32_t number) const {
    calls all;
    auto& io = control_->loop().io();
    for (auto const& c : channels) {
      if (c.from != control_->rank()) continue;
      auto const attempt = std::make_shared<call>(io);
      attempt->to = control_->everybody().ranks[zbpp::detail::index(c.to)];
      attempt->request = write(request_of(c, number));
      ::boost::asio::co_spawn(io, dial(attempt, control_->token()), ::boost::asio::detached);
      all.push_back(attempt);
    }
    return all;
  }

  // Waits until all connections are there, or the run has failed, or time is over.
  // @param refused  how many connections could not be accepted before
  // @return who could not reach whom, or nothing
  [[nodiscard]] std::string wait_for_all(
      std::vector<channel> const& channels,
      std::uint32_t number,
      calls const& all,
      std::uint64_t refused) const {
    auto const& settings = control_->settings();
    gaps missing;
    auto const wait = [&](std::chrono::milliseconds time) {
      run_for(control_->loop(), time, [&] {
        missing = look(channels, number, all);
        return control_->has_stopped() ||
               (missing.to_others.empty() && missing.from_others.empty());
      });
    };
    auto const half = settings.connect_deadline / 2;
    wait(half);
    // A rank that cannot accept knows why, and says so before the others give up.
    auto const accepting = control_->loop().exclusively([&] {
      auto const& counts = control_->data_listener().counts();
      return counts.failed > refused ? counts.last_failure : std::string();
    });
    if (!accepting.empty() && !missing.from_others.empty())
      return "cannot accept connections of other ranks at " + own_place() + ": " + accepting;
    wait(settings.connect_deadline - half);
    if (!missing.to_others.empty()) return missing.to_others;
    // The rank that connects knows why it fails, and has the time to say so first.
    if (!missing.from_others.empty()) wait(std::min(settings.deadline, settings.connect_deadline));
    return missing.from_others;
  }

  // Tells the ranks at the other ends that they are expected; until then they wait. Call only on
  // the I/O thread.
  [[nodiscard]] gaps look(
      std::vector<channel> const& channels, std::uint32_t number, calls const& all) const {
    gaps missing;
    auto next = all.begin();
    for (auto const& c : channels) {
      if (c.from == control_->rank()) {
        auto const& attempt = **next++;
        if (!attempt.is_done) missing.to_others = unreached_text(c.to, attempt);
      } else if (c.to == control_->rank()) {
        auto const found = here_->find(request_of(c, number));
        if (found == here_->all.end()) {
          missing.from_others = uncalled_text(c.from);
        } else if (!std::exchange(found->is_expected, true)) {
          std::byte const yes{1};
          boost::system::error_code lost;
          found->socket.write_some(::boost::asio::buffer(&yes, 1), lost);
          if (!lost) continue;
          here_->all.erase(found);  // its rank tries again
          missing.from_others = uncalled_text(c.from);
        }
      }
    }
    return missing;
  }

  [[nodiscard]] std::string unreached_text(int rank, call const& attempt) const {
    return zbpp::detail::joined("cannot reach rank ") + rank + " at " +
           host_and_port(attempt.to.host, attempt.to.port) + " for its messages within " +
           seconds_text(control_->settings().connect_deadline) + ": " +
           (attempt.reason.empty() ? attempt.state : attempt.reason) +
           "; check rendezvous_settings::bind and ::advertise of both, and firewalls between them" +
           set_by("connect_deadline");
  }
  [[nodiscard]] std::string uncalled_text(int rank) const {
    return zbpp::detail::joined("rank ") + rank + " has not connected to " + own_place() +
           " for its messages within " + seconds_text(control_->settings().connect_deadline) +
           set_by("connect_deadline");
  }
  [[nodiscard]] std::string own_place() const {
    auto const listening = control_->data_listener().endpoint();
    return host_and_port(listening.address().to_string(), listening.port());
  }

  // Takes all connections. Call only on the I/O thread.
  [[nodiscard]] std::vector<tcp::socket> collect(
      std::vector<channel> const& channels, std::uint32_t number, calls const& all) const {
    std::vector<tcp::socket> sockets;
    auto next = all.begin();
    for (auto const& c : channels) {
      if (c.from == control_->rank()) {
        sockets.push_back(std::move((*next++)->socket));
      } else if (c.to == control_->rank()) {
        auto const found = here_->find(request_of(c, number));
        sockets.push_back(std::move(found->socket));
        here_->all.erase(found);
      } else {
        sockets.emplace_back(control_->loop().io());
      }
    }
    return sockets;
  }

  control* control_;
  std::shared_ptr<pending_connections> here_;
  std::uint32_t next_ = 0;
};

}  // namespace zbpp::asio::detail
