// SPDX-License-Identifier: Apache-2.0
//
// What a user says about a run: whether it can work, which is checked before any socket is opened,
// where to listen and where ranks meet, and the times that follow from its deadlines.
#pragma once

#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/error.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/udp.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace zbpp::asio::detail {

// Checks what a user says about a run before any socket is opened, and finds out where to listen.

/// How long a rank that did not reach rank 0 waits at most before it tries again.
inline constexpr std::chrono::milliseconds longest_join_pause{1000};

/// @return a launch, its host without brackets
/// @throws error (bad_argument) unless it is one that can work
[[nodiscard]] inline launch checked(launch start) {
  if (start.ranks < 1 || start.rank < 0 || start.rank >= start.ranks)
    throw error(errc::bad_argument) + "launch::rank is " + start.rank + " and launch::ranks is " +
        start.ranks + "; set a rank from 0 to ranks - 1";
  if (start.rank != 0 && start.port == 0)
    throw error(errc::bad_argument) + "launch::port is 0 on rank " + start.rank +
        ", and only rank 0 may choose a free port; set the port that rank 0 listens on";
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
      throw error(errc::bad_argument) + "rendezvous_settings::" + name +
          " is 0 ms or less; set it above 0 ms";
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
    throw error(errc::bad_argument) + "rendezvous_settings::bind is '" + s.bind +
        "'; it must be an address of this machine such as 127.0.0.1";
  return address;
}

/// @return the host that others are told; empty: the one that the connections of this process show
[[nodiscard]] inline std::string host_to_tell(rendezvous_settings const& s) {
  if (!s.advertise.empty()) return s.advertise;
  auto const address = bind_address(s);
  return address.is_unspecified() ? std::string() : address.to_string();
}

// Whether the place where a run meets is one that rank 0 listens on, which it can find out itself.

/// @return whether this machine has an address; true where the system does not say
[[nodiscard]] inline bool is_of_this_machine(
    ::boost::asio::io_context& io, ::boost::asio::ip::address const& address) {
  using udp = ::boost::asio::ip::udp;
  boost::system::error_code failed;
  udp::endpoint const place(address, 0);
  udp::socket probe(io);
  probe.open(place.protocol(), failed);
  if (failed) return true;
  probe.bind(place, failed);
  return failed != boost::system::errc::address_not_available;
}

/// Names the place where ranks are told to meet.
struct meeting_place {
  std::string host;
  std::uint16_t port = 0;
  bool is_name = false;  ///< rather than an address; other machines may know others by it
};

/// @param found      the addresses of the host, as this machine knows them
/// @param listening  what rank 0 listens on
/// @param forwards   whether another machine may forward connections to this one
/// @return why no rank reaches rank 0 at a place; empty where ranks may
[[nodiscard]] inline std::string unmet_text(
    ::boost::asio::io_context& io,
    meeting_place const& place,
    std::span<::boost::asio::ip::address const> found,
    ::boost::asio::ip::address const& listening,
    bool forwards) {
  using address = ::boost::asio::ip::address;
  if (found.empty()) return {};
  auto const meeting = host_and_port(place.host, place.port);
  bool const is_here =
      std::ranges::any_of(found, [&](address const& each) { return is_of_this_machine(io, each); });
  if (!is_here)
    return forwards ? std::string()
                    : "the ranks are to meet at " + meeting +
                          ", which is no address of rank 0's machine; set MASTER_ADDR to one that "
                          "is, or where another machine forwards connections to it, "
                          "rendezvous_settings::advertise";
  bool const listens = std::ranges::any_of(found, [&](address const& each) {
    bool const is_any = listening.is_unspecified() && (listening.is_v6() || each.is_v4());
    return is_any || plain_address(each) == plain_address(listening);
  });
  if (listens) return {};
  // What is not known for certain: another machine may know a name by another address, and without
  // a launcher rank 0 is not told where the others go.
  if (place.is_name && !listening.is_loopback()) return {};
  if (place.host == "127.0.0.1") return {};
  return "the ranks are to meet at " + meeting + ", and rank 0 listens on " +
         listening.to_string() +
         " alone; set rendezvous_settings::bind to an address of that host, or MASTER_ADDR to " +
         listening.to_string();
}

// Times that follow from the deadlines of a run.

/// @return how often a rank shows that it lives; it may be given up this long before `deadline`
[[nodiscard]] inline std::chrono::milliseconds heartbeat_of(rendezvous_settings const& s) {
  return std::max(std::min(s.deadline, s.stall_deadline) / 10, std::chrono::milliseconds(1));
}

/// @return how long ranks may take to be told that the run has failed, and then to end
[[nodiscard]] inline std::chrono::milliseconds stop_limit_of(rendezvous_settings const& s) {
  return std::min(s.deadline / 4, std::chrono::milliseconds(3000));
}

/// @return how long a rank that has ended waits for others to read or to notice that
[[nodiscard]] inline std::chrono::milliseconds linger_of(rendezvous_settings const& s) {
  return std::min(s.deadline / 4, std::chrono::milliseconds(250));
}

}  // namespace zbpp::asio::detail
