// SPDX-License-Identifier: Apache-2.0
//
// Checks what a user says about a run before any socket is opened, and finds out where to listen.
#pragma once

#include <zbpp/asio/detail/host.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/error.hpp>

#include <boost/asio/ip/address.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

namespace zbpp::asio::detail {

/// How long a rank that did not reach rank 0 waits at most before it tries again.
inline constexpr std::chrono::milliseconds longest_join_pause{1000};

/// @return a launch, its host without brackets
/// @throws error (bad_argument) unless it is one that can work
[[nodiscard]] inline launch checked(launch start) {
  if (start.ranks < 1 || start.rank < 0 || start.rank >= start.ranks)
    throw error(
        errc::bad_argument,
        "launch::rank is " + std::to_string(start.rank) + " and launch::ranks is " +
            std::to_string(start.ranks) + "; set a rank from 0 to ranks - 1");
  if (start.rank != 0 && start.port == 0)
    throw error(
        errc::bad_argument,
        "launch::port is 0 on rank " + std::to_string(start.rank) +
            ", and only rank 0 may choose a free port; set the port that rank 0 listens on");
  start.host = without_brackets(start.host);
  return start;
}

/// @return settings, their hosts without brackets
/// @throws error (bad_argument) unless they are in range
[[nodiscard]] inline rendezvous_settings checked(rendezvous_settings s) {
  constexpr std::size_t host_name_limit = 255;
  for (auto const& [name, deadline] :
       {std::pair("join_deadline", s.join_deadline),
        {"collective_deadline", s.collective_deadline},
        {"connect_deadline", s.connect_deadline},
        {"deadline", s.deadline},
        {"stall_deadline", s.stall_deadline}})
    if (deadline.count() <= 0)
      throw error(
          errc::bad_argument,
          std::string("rendezvous_settings::") + name + " is 0 ms or less; set it above 0 ms");
  zbpp::detail::require(
      s.largest_blob <= std::size_t{1} << 31,
      "rendezvous_settings::largest_blob is above 2 GiB; set at most 2 GiB");
  zbpp::detail::require(
      s.advertise.size() <= host_name_limit,
      "rendezvous_settings::advertise has more than 255 characters; set a host name or address");
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

}  // namespace zbpp::asio::detail
