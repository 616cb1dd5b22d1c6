// SPDX-License-Identifier: Apache-2.0
//
// Where connections come in: accepts them, lets each show that it is of this run, and hands on
// those that could. Connections without a token cost a bounded amount of memory and time, however
// many come.
#pragma once

#include <zbpp/asio/detail/handshake.hpp>
#include <zbpp/asio/detail/reason.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/error.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

namespace zbpp::asio::detail {

/// Says where a listener listens and how long it waits for a handshake.
struct listener_settings {
  /// Loopback unless told otherwise; port 0 takes a free one.
  ::boost::asio::ip::tcp::endpoint endpoint{::boost::asio::ip::address_v4::loopback(), 0};
  /// How long a connection has for the handshake.
  std::chrono::milliseconds handshake_deadline{5000};
  /// How many may be at the handshake at once, at least 1; beyond that the oldest is closed.
  std::size_t most_pending = 64;
};

/// Counts what came to a listener.
struct listener_counts {
  std::uint64_t admitted = 0;
  std::uint64_t refused = 0;  ///< could not show that they are of this run, or broke off
  std::uint64_t dropped = 0;  ///< took too long, or made room for others
  std::uint64_t failed = 0;   ///< could not be accepted, for want of descriptors or memory
  std::string last_reason;    ///< why the last one was refused or dropped
  std::string last_failure;   ///< why the last one could not be accepted
};

/// Listens for the ranks of this run.
///
/// All of it, construction and destruction too, is only for the I/O thread: in a handler or in
/// `io_loop.exclusively`. Once it is destroyed or stopped nothing of it runs any more.
class listener {
  using tcp = ::boost::asio::ip::tcp;

 public:
  /// Takes an admitted connection (TCP_NODELAY is on). Called on the I/O thread. A connection
  /// for which it throws counts as refused.
  using callback = std::function<void(tcp::socket, link_purpose)>;

  /// Listens from now on.
  /// @param by  outlives the listener
  /// @throws error (io_failed) when the endpoint cannot be listened on; (bad_argument) when its
  ///         address is not of this machine, and for wrong settings
  listener(
      io_loop& by,
      run_token const& token,
      callback on_connection,
      listener_settings const& settings = {})
      : state_(std::make_shared<shared_state>(by.io(), token, std::move(on_connection), settings)) {
    zbpp::detail::require(
        settings.most_pending > 0, "listener_settings::most_pending is 0; set at least 1");
    zbpp::detail::require(
        settings.handshake_deadline > std::chrono::milliseconds(0),
        "listener_settings::handshake_deadline is 0 ms or less; set it above 0 ms");
    state_->listen(settings.endpoint);
    state_->accept_next();
  }
  listener(listener const&) = delete;
  listener& operator=(listener const&) = delete;
  ~listener() { stop(); }

  /// Stops listening and drops what is at the handshake; connections that were handed on stay.
  void stop() noexcept { state_->close(); }

  /// @return where it listens, with the port that it got
  [[nodiscard]] tcp::endpoint const& endpoint() const noexcept { return state_->endpoint; }
  /// @return what came so far
  [[nodiscard]] listener_counts const& counts() const noexcept { return state_->counts; }
  /// @return how many are at the handshake, at most `most_pending`
  [[nodiscard]] std::size_t pending() const noexcept { return state_->pending.size(); }

 private:
  struct candidate {
    explicit candidate(tcp::socket accepted)
        : socket(std::move(accepted)), deadline(socket.get_executor()) {}
    tcp::socket socket;
    ::boost::asio::steady_timer deadline;
    std::list<std::shared_ptr<candidate>>::iterator place;
    bool is_here = true;  // and so `place` is valid
  };

  // So many connections in a row, then a rest: a flood takes a small part of a core, and a thread
  // that runs what is ready comes to an end. Long enough for an honest rank to get through before
  // it is the oldest, short enough for the queue of the kernel to empty.
  static constexpr std::size_t most_unrested = 64;
  static constexpr std::chrono::milliseconds rest_time{20};

  // What handlers share with the listener. Those that are late find it closed.
  struct shared_state : std::enable_shared_from_this<shared_state> {
    shared_state(
        ::boost::asio::io_context& io,
        run_token const& of_run,
        callback handler,
        listener_settings const& s)
        : acceptor(io), rest(io), token(of_run), on_connection(std::move(handler)), settings(s) {}

    void listen(tcp::endpoint const& where) {
      boost::system::error_code reason;
      auto const check = [&] {
        if (!reason) return;
        auto const cure =
            lacks_descriptors(reason) ? "" : "; choose a free port and an address of this machine";
        bool const is_elsewhere = reason == boost::system::errc::address_not_available;
        throw error(
            is_elsewhere ? errc::bad_argument : errc::io_failed,
            "cannot listen on address " + where.address().to_string() + ", port " +
                std::to_string(where.port()) + ": " + reason_of(reason) + cure);
      };
      acceptor.open(where.protocol(), reason), check();
      acceptor.set_option(tcp::acceptor::reuse_address(true), reason), check();
      acceptor.bind(where, reason), check();
      acceptor.listen(tcp::acceptor::max_listen_connections, reason), check();
      endpoint = acceptor.local_endpoint(reason), check();
    }

    void close() noexcept {
      boost::system::error_code ignored;
      acceptor.close(ignored);
      rest.cancel();
      while (!pending.empty()) leave(pending.front());
      on_connection = nullptr;
    }

    [[nodiscard]] bool is_open() const noexcept { return acceptor.is_open(); }

    // Accepts one connection after another. Not a coroutine: in a loop of one, clang 16 keeps the
    // address of a thread-local of Asio's, and the io_loop changes threads (LLVM issue 63022).
    void accept_next() {
      acceptor.async_accept([self = shared_from_this()](
                                boost::system::error_code reason, tcp::socket socket) {
        if (!self->is_open()) return;
        if (reason) {
          ++self->counts.failed;
          self->counts.last_failure = reason_of(reason);
          self->unrested = most_unrested;  // no descriptors, say: trying again at once is no use
        } else {
          ++self->unrested;
          self->begin_handshake(std::move(socket));
        }
        self->go_on();
      });
    }

    // No memory even to go on: closed, so that ranks are refused and need not wait.
    void go_on() noexcept {
      try {
        if (unrested < most_unrested) return accept_next();
        unrested = 0;
        rest.expires_after(rest_time);
        rest.async_wait([self = shared_from_this()](boost::system::error_code) {
          if (self->is_open()) self->go_on();
        });
      } catch (...) {
        note(counts.failed, counts.last_failure, std::current_exception());
        boost::system::error_code ignored;
        acceptor.close(ignored);
      }
    }

    // Begins the handshake of a connection. Closes it where that fails; throws nothing.
    void begin_handshake(tcp::socket socket) noexcept {
      try {
        socket.set_option(tcp::no_delay(true));
        if (pending.size() >= settings.most_pending)
          drop(pending.front(), "made room for newer connections");
        auto const who = std::make_shared<candidate>(std::move(socket));
        who->deadline.expires_after(settings.handshake_deadline);
        auto const self = shared_from_this();
        who->deadline.async_wait([self, who](boost::system::error_code reason) {
          if (!reason && who->is_here) self->drop(who, "did not finish the handshake in time");
        });
        who->place = pending.insert(pending.end(), who);
        ::boost::asio::co_spawn(
            acceptor.get_executor(),
            admit(who->socket, token),
            [self, who](std::exception_ptr failure, link_purpose what) {
              self->settle(who, std::move(failure), what);
            });
      } catch (...) {
        note(counts.failed, counts.last_failure, std::current_exception());
      }
    }

    void settle(
        std::shared_ptr<candidate> const& who,
        std::exception_ptr failure,
        link_purpose what) noexcept {
      if (!who->is_here) return;
      auto socket = std::move(who->socket);
      leave(who);
      if (failure) return note(counts.refused, counts.last_reason, failure);
      try {
        auto const call = on_connection;  // it may stop the listener
        call(std::move(socket), what);
        ++counts.admitted;
        if (unrested > 0) --unrested;
      } catch (...) {
        note(counts.refused, counts.last_reason, std::current_exception());
      }
    }

    void drop(std::shared_ptr<candidate> who, char const* why) noexcept {
      try {
        counts.last_reason = name_of_peer(who->socket) + " " + why;
      } catch (...) {
        counts.last_reason.clear();
      }
      ++counts.dropped;
      leave(std::move(who));
    }

    void leave(std::shared_ptr<candidate> who) noexcept {
      who->is_here = false;
      pending.erase(who->place);
      who->deadline.cancel();
      boost::system::error_code ignored;
      who->socket.close(ignored);
    }

    static void note(
        std::uint64_t& count, std::string& why, std::exception_ptr const& failure) noexcept {
      ++count;
      why.clear();
      try {
        std::rethrow_exception(failure);
      } catch (std::bad_alloc const&) {
        why = "out of memory";  // short enough to need none
      } catch (std::exception const& e) {
        try {
          why = reason_of(e);
        } catch (...) {
        }
      } catch (...) {
      }
    }

    tcp::acceptor acceptor;
    ::boost::asio::steady_timer rest;
    run_token token;
    callback on_connection;
    listener_settings settings;
    tcp::endpoint endpoint;
    listener_counts counts;
    std::list<std::shared_ptr<candidate>> pending;  // at the handshake, the oldest first
    std::size_t unrested = 0;  // connections since the last rest that were not admitted
  };

  std::shared_ptr<shared_state> state_;
};

}  // namespace zbpp::asio::detail
