// SPDX-License-Identifier: Apache-2.0
//
// Whether the place where a run meets is one that rank 0 listens on, which it can find out itself.
#pragma once

#include <zbpp/asio/detail/host.hpp>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/udp.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace zbpp::asio::detail {

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
  auto const where = host_and_port(place.host, place.port);
  bool const is_here =
      std::ranges::any_of(found, [&](address const& each) { return is_of_this_machine(io, each); });
  if (!is_here)
    return forwards
               ? std::string()
               : "the ranks are to meet at " + where +
                     ", which is no address of rank 0's machine; set MASTER_ADDR to one that is, "
                     "or where another machine forwards connections to it, "
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
  return "the ranks are to meet at " + where + ", and rank 0 listens on " + listening.to_string() +
         " alone; set rendezvous_settings::bind to an address of that host, or MASTER_ADDR to " +
         listening.to_string();
}

}  // namespace zbpp::asio::detail
