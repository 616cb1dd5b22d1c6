// SPDX-License-Identifier: Apache-2.0
//
// Hosts as text: with the brackets of IPv6 or without, with a port, and as sockets tell them.
#pragma once

#include <boost/asio/ip/address.hpp>

#include <cstdint>
#include <string>

namespace zbpp::asio::detail {

/// Takes the brackets off an IPv6 address such as `[::1]`; any other text stays as it is.
[[nodiscard]] inline std::string without_brackets(std::string const& host) {
  bool const has_both = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return has_both ? host.substr(1, host.size() - 2) : host;
}

/// @return host and port as in `node1:29400` and `[::1]:29400`
[[nodiscard]] inline std::string host_and_port(std::string const& host, std::uint16_t port) {
  bool const is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

/// @return an address as its machine knows it: a socket that listens for both versions writes those
///         of IPv4 as addresses of IPv6
[[nodiscard]] inline ::boost::asio::ip::address plain_address(
    ::boost::asio::ip::address const& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return ::boost::asio::ip::make_address_v4(::boost::asio::ip::v4_mapped, address.to_v6());
}

}  // namespace zbpp::asio::detail
