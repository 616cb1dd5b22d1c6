// SPDX-License-Identifier: Apache-2.0
//
// What a user may say about how the ranks of a run meet, and how long they wait for each other.
#pragma once

#include <zbpp/asio/host.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/error.hpp>

#include <boost/asio/ip/address.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace zbpp::asio {

/// Holds how patient the ranks of a run are with each other, and where they listen. All ranks use
/// the same; only addresses may differ.
struct rendezvous_settings {
  /// The address of this machine to listen on. Others than loopback let strangers knock.
  std::string bind = "127.0.0.1";
  /// A name or address under which other ranks reach this process; empty: the one in `bind`, or
  /// where that is a wildcard such as 0.0.0.0, the one it calls from.
  std::string advertise = {};
  /// How long ranks may take to find each other.
  std::chrono::milliseconds join_deadline{60'000};
  /// How long the ranks may be apart in a collective call.
  std::chrono::milliseconds collective_deadline{60'000};
  /// How long ranks that have all made their pipelines may take to connect for their messages.
  std::chrono::milliseconds connect_deadline{20'000};
  /// How long a rank may be silent, and all may take to leave a step that failed.
  std::chrono::milliseconds deadline{10'000};
  /// How long a step may go on without any rank getting any further; longer than any pass takes.
  std::chrono::milliseconds stall_deadline{60'000};
  /// The most bytes that a rank may give to a collective call.
  std::size_t largest_blob = std::size_t{64} << 20;
  /// Told the port where rank 0 listens, on rank 0, before it waits for others: for port 0.
  std::function<void(std::uint16_t)> on_listening = {};
};

namespace detail {

/// How long a rank that did not reach rank 0 waits at most before it tries again.
inline constexpr std::chrono::milliseconds longest_join_pause{1000};

/// @return a launch, its host without brackets
/// @throws error (bad_argument) unless it is one that can work
[[nodiscard]] inline launch checked(launch start) {
  zbpp::detail::require(
      start.ranks >= 1 && start.rank >= 0 && start.rank < start.ranks,
      "a launch needs a rank from 0 to ranks - 1");
  zbpp::detail::require(
      start.rank == 0 || start.port != 0, "other ranks than 0 need the port of rank 0");
  start.host = without_brackets(start.host);
  return start;
}

/// @return settings, their hosts without brackets
/// @throws error (bad_argument) unless they are in range
[[nodiscard]] inline rendezvous_settings checked(rendezvous_settings s) {
  constexpr std::size_t host_name_limit = 255;
  zbpp::detail::require(
      std::min({s.join_deadline,
                s.collective_deadline,
                s.connect_deadline,
                s.deadline,
                s.stall_deadline})
              .count() > 0,
      "the deadlines of a rendezvous are above 0 ms");
  zbpp::detail::require(
      s.largest_blob <= std::size_t{1} << 31, "rendezvous_settings::largest_blob is at most 2 GiB");
  zbpp::detail::require(
      s.advertise.size() <= host_name_limit,
      "rendezvous_settings::advertise is a host name, which has at most 255 characters");
  s.bind = without_brackets(s.bind);
  s.advertise = without_brackets(s.advertise);
  return s;
}

/// @return where to listen
/// @throws error (bad_argument) when that is no address
[[nodiscard]] inline ::boost::asio::ip::address bind_address(rendezvous_settings const& s) {
  boost::system::error_code wrong;
  auto const address = ::boost::asio::ip::make_address(s.bind, wrong);
  if (wrong)
    throw error(
        errc::bad_argument,
        "rendezvous_settings::bind is '" + s.bind +
            "'; it must be an address of this machine such as 127.0.0.1");
  return address;
}

/// @return the host that others are told, where this process knows one; empty: the one that its
///         connections show
[[nodiscard]] inline std::string host_to_tell(rendezvous_settings const& s) {
  if (!s.advertise.empty()) return s.advertise;
  auto const address = bind_address(s);
  return address.is_unspecified() ? std::string() : address.to_string();
}

}  // namespace detail
}  // namespace zbpp::asio
