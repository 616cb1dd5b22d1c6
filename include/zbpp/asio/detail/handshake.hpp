// SPDX-License-Identifier: Apache-2.0
//
// How two processes show each other that they hold the token of one run, before either believes a
// byte of the other. Three messages of fixed size:
//   accepting  -> magic, version, challenge a
//   connecting -> magic, version, purpose, challenge c, HMAC("guest", version, purpose, a, c)
//   accepting  -> HMAC("host ", version, purpose, a, c), or zeros: refused
#pragma once

#include <zbpp/asio/detail/host.hpp>
#include <zbpp/asio/detail/reason.hpp>
#include <zbpp/asio/token.hpp>
#include <zbpp/error.hpp>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace zbpp::asio::detail {

/// Says what a connection is for; the connecting side states and signs it.
enum class link_purpose : std::uint8_t {
  control = 1,  ///< joining, collectives, failures
  data = 2,     ///< one channel's messages
};

/// Is the version of the handshake that this build speaks; both ends need the same.
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
    std::byte what,
    challenge const& of_host,
    challenge const& of_guest) {
  std::array<std::byte, 16 + preamble_size + 1 + 2 * sizeof(challenge)> text{};
  std::memcpy(text.data(), role.data(), role.size());
  put_preamble(std::span(text).subspan(16));
  text[16 + preamble_size] = what;
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
    boost::system::error_code reason, std::string const& peer, char const* what) {
  if (reason) throw error(errc::io_failed, peer + " " + what + ": " + reason_of(reason));
}

inline void expect_preamble(std::span<std::byte const> bytes, std::string const& peer) {
  if (std::memcmp(bytes.data(), handshake_magic.data(), version_at) != 0)
    throw error(
        errc::refused_peer,
        peer + " does not speak as a rank of zbpp; check that host and port are those of rank 0");
  std::uint32_t version = 0;
  std::memcpy(&version, bytes.data() + version_at, sizeof(version));
  if (version != handshake_version)
    throw error(
        errc::refused_peer,
        peer + " speaks version " + std::to_string(version) +
            " of the handshake, and this process " + std::to_string(handshake_version) +
            "; build all ranks with the same zbpp");
}

/// Shows the accepting side that this process holds the token, and has it show the same. Has no
/// deadline: to end it, close the socket. After an error close the socket, too.
/// @param socket  a connected one; it and the token outlive the coroutine
/// @throws error (refused_peer) when the other side is no rank of zbpp, speaks another version,
/// holds another token or says that this one does; error (io_failed) when the connection broke
[[nodiscard]] inline ::boost::asio::awaitable<void> introduce(
    ::boost::asio::ip::tcp::socket& socket, run_token const& token, link_purpose what) {
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
  auto const stated = static_cast<std::byte>(what);
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
    throw error(
        errc::refused_peer,
        peer + " refused this process: it holds another token; give all ranks the same ZBPP_TOKEN "
               "or ZBPP_TOKEN_FILE");
  if (!equal(proof, sign_as(host_role, token, stated, of_host, of_guest)))
    throw error(
        errc::refused_peer,
        peer + " does not hold this run's token; give all ranks the same ZBPP_TOKEN or "
               "ZBPP_TOKEN_FILE, and check that host and port are those of rank 0");
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
    throw error(
        errc::refused_peer,
        peer + " does not hold this run's token; give all ranks the same ZBPP_TOKEN or "
               "ZBPP_TOKEN_FILE");
  expect_done(reason, peer, "closed the connection during the handshake");
  auto const what = static_cast<link_purpose>(stated);
  if (what != link_purpose::control && what != link_purpose::data)
    throw error(
        errc::refused_peer,
        peer + " connects for purpose " + std::to_string(std::to_integer<int>(stated)) +
            "; this version knows 1 (control) and 2 (data)");
  co_return what;
}

}  // namespace zbpp::asio::detail
