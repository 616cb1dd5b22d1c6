// SPDX-License-Identifier: Apache-2.0
//
// How connections begin: both ends show that they hold the token of the run.
#pragma once

#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/error.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace zbpp::asio::detail {

// How two processes show each other that they hold the token of one run, before either believes a
// byte of the other. Three messages of fixed size:
//   accepting  -> magic, version, challenge a
//   connecting -> magic, version, purpose, challenge c, HMAC("zbpp guest", ...)
//   accepting  -> HMAC("zbpp host", ...), or zeros: refused
// Both sign the same: the role, filled up to 16 bytes, then magic, version, purpose, a and c.

/// Says what a connection is for; the connecting side states and signs it.
enum class link_purpose : std::uint8_t {
  control = 1,  ///< joining, collectives, failures
  data = 2,     ///< one channel's messages
};

/// The version of the handshake that this build speaks; both ends need the same.
inline constexpr std::uint32_t handshake_version = 1;

namespace net = ::boost::asio;
using net::ip::tcp;

inline constexpr std::string_view handshake_magic = "zbpp";

// Where things stand. Every version begins with magic and version, so that each can name the other.
inline constexpr std::size_t version_at = 4;
inline constexpr std::size_t preamble_size = 8;
inline constexpr std::size_t hello_size = preamble_size + sizeof(challenge);
inline constexpr std::size_t purpose_at = preamble_size;
inline constexpr std::size_t challenge_at = purpose_at + 1;
inline constexpr std::size_t signature_at = challenge_at + sizeof(challenge);
inline constexpr std::size_t answer_size = signature_at + sizeof(signature);

using preamble = std::array<std::byte, preamble_size>;
using hello = std::array<std::byte, hello_size>;
using answer = std::array<std::byte, answer_size>;

template <std::size_t Size>
[[nodiscard]] std::array<std::byte, Size> piece(std::span<std::byte const> from, std::size_t at) {
  std::array<std::byte, Size> result;
  std::ranges::copy(from.subspan(at, Size), result.begin());
  return result;
}

inline void put_preamble(std::span<std::byte> into) {
  std::memcpy(into.data(), handshake_magic.data(), version_at);
  std::memcpy(into.data() + version_at, &handshake_version, sizeof(handshake_version));
}

// Signs one side's part of one handshake. No other message gives the same bytes to sign: the role
// keeps a signature from being reflected, the two challenges from being replayed, and every field
// has a fixed place.
[[nodiscard]] inline signature sign_as(
    std::string_view role,
    run_token const& token,
    std::byte purpose,
    challenge const& of_host,
    challenge const& of_guest) {
  std::array<std::byte, 16 + preamble_size + 1 + 2 * sizeof(challenge)> text{};
  std::memcpy(text.data(), role.data(), role.size());
  put_preamble(std::span(text).subspan(16));
  text[16 + preamble_size] = purpose;
  std::ranges::copy(of_host, text.end() - 2 * sizeof(challenge));
  std::ranges::copy(of_guest, text.end() - sizeof(challenge));
  return token.sign(text);
}
inline constexpr std::string_view guest_role = "zbpp guest";
inline constexpr std::string_view host_role = "zbpp host";

[[nodiscard]] inline std::string name_of_peer(tcp::socket const& socket) {
  boost::system::error_code reason;
  auto const peer = socket.remote_endpoint(reason);
  if (reason) return "a peer that is gone";
  return host_and_port(plain_address(peer.address()).to_string(), peer.port());
}

inline void expect_done(
    boost::system::error_code reason, std::string const& peer, char const* event) {
  if (reason) throw error(errc::io_failed) + peer + " " + event + ": " + reason_of(reason);
}

inline void expect_preamble(std::span<std::byte const> bytes, std::string const& peer) {
  if (std::memcmp(bytes.data(), handshake_magic.data(), version_at) != 0)
    throw error(errc::refused_peer) + peer +
        " does not speak as a rank of zbpp; check that host and port are those of rank 0";
  std::uint32_t version = 0;
  std::memcpy(&version, bytes.data() + version_at, sizeof(version));
  if (version != handshake_version)
    throw error(errc::refused_peer) + peer + " speaks version " + version +
        " of the handshake, and this process " + handshake_version +
        "; build all ranks with the same zbpp";
}

/// Shows the accepting side that this process holds the token, and has it show the same. Has no
/// deadline: to end it, close the socket. After an error close the socket, too.
/// @param socket  a connected one; it and the token outlive the coroutine
/// @throws error (refused_peer) when the other side is no rank of zbpp, speaks another version,
/// holds another token or says that this one does; error (io_failed) when the connection broke
[[nodiscard]] inline ::boost::asio::awaitable<void> introduce(
    ::boost::asio::ip::tcp::socket& socket, run_token const& token, link_purpose purpose) {
  auto const peer = name_of_peer(socket);
  boost::system::error_code reason;

  hello greeting{};
  co_await net::async_read(
      socket, net::buffer(greeting), net::redirect_error(net::use_awaitable, reason));
  expect_done(reason, peer, "closed the connection instead of beginning the handshake");

  answer reply{};
  put_preamble(reply);
  if (!std::ranges::equal(
          std::span(greeting).first<preamble_size>(), std::span(reply).first<preamble_size>())) {
    // So that the other side can name this version; whether it arrives does not matter.
    co_await net::async_write(
        socket,
        net::buffer(reply.data(), preamble_size),
        net::redirect_error(net::use_awaitable, reason));
    expect_preamble(greeting, peer);
  }

  auto const of_host = piece<sizeof(challenge)>(greeting, preamble_size);
  auto const of_guest = make_challenge();
  auto const stated = static_cast<std::byte>(purpose);
  auto const shown = sign_as(guest_role, token, stated, of_host, of_guest);
  reply[purpose_at] = stated;
  std::ranges::copy(of_guest, reply.begin() + challenge_at);
  std::ranges::copy(shown, reply.begin() + signature_at);
  co_await net::async_write(
      socket, net::buffer(reply), net::redirect_error(net::use_awaitable, reason));
  expect_done(reason, peer, "closed the connection during the handshake");

  signature proof{};
  co_await net::async_read(
      socket, net::buffer(proof), net::redirect_error(net::use_awaitable, reason));
  expect_done(reason, peer, "closed the connection instead of showing that it is of this run");
  if (proof == signature{})
    throw error(errc::refused_peer) + peer +
        " refused this process: it holds another token; give all ranks the same ZBPP_TOKEN "
        "or ZBPP_TOKEN_FILE";
  if (!equal(proof, sign_as(host_role, token, stated, of_host, of_guest)))
    throw error(errc::refused_peer) + peer +
        " does not hold this run's token; give all ranks the same ZBPP_TOKEN or "
        "ZBPP_TOKEN_FILE, and check that host and port are those of rank 0";
}

/// Has a connecting process show that it holds the token, and shows it the same. Reads nothing but
/// the fixed number of bytes of the handshake. Has no deadline: to end it, close the socket. After
/// an error close the socket, too.
/// @param socket  an accepted one; it and the token outlive the coroutine
/// @return what the connection is for
/// @throws error (refused_peer) when the other side is no rank of zbpp, speaks another version or
/// holds another token; error (io_failed) when the connection broke
[[nodiscard]] inline ::boost::asio::awaitable<link_purpose> admit(
    ::boost::asio::ip::tcp::socket& socket, run_token const& token) {
  auto const peer = name_of_peer(socket);
  boost::system::error_code reason;

  auto const of_host = make_challenge();
  hello greeting{};
  put_preamble(greeting);
  std::ranges::copy(of_host, greeting.begin() + preamble_size);
  co_await net::async_write(
      socket, net::buffer(greeting), net::redirect_error(net::use_awaitable, reason));
  expect_done(reason, peer, "closed the connection during the handshake");

  answer reply{};
  co_await net::async_read(
      socket,
      net::buffer(reply.data(), preamble_size),
      net::redirect_error(net::use_awaitable, reason));
  expect_done(reason, peer, "did not say who it is");
  expect_preamble(reply, peer);
  co_await net::async_read(
      socket,
      net::buffer(reply.data() + preamble_size, reply.size() - preamble_size),
      net::redirect_error(net::use_awaitable, reason));
  expect_done(reason, peer, "did not show that it holds the token");

  auto const stated = reply[purpose_at];
  auto const of_guest = piece<sizeof(challenge)>(reply, challenge_at);
  auto const shown = piece<sizeof(signature)>(reply, signature_at);
  bool const is_guest = equal(shown, sign_as(guest_role, token, stated, of_host, of_guest));
  signature proof{};
  if (is_guest) proof = sign_as(host_role, token, stated, of_host, of_guest);
  co_await net::async_write(
      socket, net::buffer(proof), net::redirect_error(net::use_awaitable, reason));
  if (!is_guest)
    throw error(errc::refused_peer) + peer +
        " does not hold this run's token; give all ranks the same ZBPP_TOKEN or ZBPP_TOKEN_FILE";
  expect_done(reason, peer, "closed the connection during the handshake");
  auto const purpose = static_cast<link_purpose>(stated);
  if (purpose != link_purpose::control && purpose != link_purpose::data)
    throw error(errc::refused_peer) + peer + " connects for purpose " +
        std::to_integer<int>(stated) + "; this version knows 1 (control) and 2 (data)";
  co_return purpose;
}

// Where connections come in: accepts them, lets each show that it is of this run, and hands on
// those that could. Any number without a token costs bounded memory and time.

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

    void listen(tcp::endpoint const& requested) {
      boost::system::error_code reason;
      auto const check = [&] {
        if (!reason) return;
        auto const cure =
            lacks_descriptors(reason) ? "" : "; choose a free port and an address of this machine";
        bool const is_elsewhere = reason == boost::system::errc::address_not_available;
        throw error(is_elsewhere ? errc::bad_argument : errc::io_failed) +
            "cannot listen on address " + requested.address().to_string() + ", port " +
            requested.port() + ": " + reason_of(reason) + cure;
      };
      acceptor.open(requested.protocol(), reason), check();
      acceptor.set_option(tcp::acceptor::reuse_address(true), reason), check();
      acceptor.bind(requested, reason), check();
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
        auto const waiting = std::make_shared<candidate>(std::move(socket));
        waiting->deadline.expires_after(settings.handshake_deadline);
        auto const self = shared_from_this();
        waiting->deadline.async_wait([self, waiting](boost::system::error_code reason) {
          if (!reason && waiting->is_here)
            self->drop(waiting, "did not finish the handshake in time");
        });
        waiting->place = pending.insert(pending.end(), waiting);
        ::boost::asio::co_spawn(
            acceptor.get_executor(),
            admit(waiting->socket, token),
            [self, waiting](std::exception_ptr failure, link_purpose purpose) {
              self->settle(waiting, std::move(failure), purpose);
            });
      } catch (...) {
        note(counts.failed, counts.last_failure, std::current_exception());
      }
    }

    void settle(
        std::shared_ptr<candidate> const& waiting,
        std::exception_ptr failure,
        link_purpose purpose) noexcept {
      if (!waiting->is_here) return;
      auto socket = std::move(waiting->socket);
      leave(waiting);
      if (failure) return note(counts.refused, counts.last_reason, failure);
      try {
        auto const call = on_connection;  // it may stop the listener
        call(std::move(socket), purpose);
        ++counts.admitted;
        if (unrested > 0) --unrested;
      } catch (...) {
        note(counts.refused, counts.last_reason, std::current_exception());
      }
    }

    void drop(std::shared_ptr<candidate> waiting, char const* why) noexcept {
      try {
        counts.last_reason = name_of_peer(waiting->socket) + " " + why;
      } catch (...) {
        counts.last_reason.clear();
      }
      ++counts.dropped;
      leave(std::move(waiting));
    }

    void leave(std::shared_ptr<candidate> waiting) noexcept {
      waiting->is_here = false;
      pending.erase(waiting->place);
      waiting->deadline.cancel();
      boost::system::error_code ignored;
      waiting->socket.close(ignored);
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
