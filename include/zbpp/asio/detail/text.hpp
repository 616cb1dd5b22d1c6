// SPDX-License-Identifier: Apache-2.0
//
// What messages are made of: ranks, versions, hosts and limits in words, and why something failed.
#pragma once

#include <zbpp/error.hpp>

#include <boost/asio/ip/address.hpp>
#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <system_error>

namespace zbpp::asio::detail {

// Ranks and versions in words, for messages.

/// @return numbers as in "2", "2 and 3", "2, 3 and 5"
[[nodiscard]] inline std::string list_text(std::span<int const> numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    text.append(
            i == 0                    ? ""
            : i + 1 == numbers.size() ? " and "
                                      : ", ")
        .append(std::to_string(numbers[i]));
  return text;
}

/// @return ranks in words: "rank 2", "ranks 2, 3 and 5"
[[nodiscard]] inline std::string ranks_text(std::span<int const> ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_text(ranks);
}

/// @param version  as ZBPP_VERSION
[[nodiscard]] inline std::string version_text(std::uint32_t version) {
  return zbpp::detail::joined(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// Time limits in words, with the setting that decides them.

/// @param setting  of `rendezvous_settings`
[[nodiscard]] inline std::string set_by(char const* setting) {
  return zbpp::detail::joined("; rendezvous_settings::", setting, " sets this limit");
}

// Hosts as text: with the brackets of IPv6 or without, with a port, and as sockets tell them.

/// Takes the brackets off an IPv6 address such as `[::1]`; any other text stays as it is.
[[nodiscard]] inline std::string without_brackets(std::string const& host) {
  bool const has_both = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return has_both ? host.substr(1, host.size() - 2) : host;
}

/// @return host and port as in `node1:29400` and `[::1]:29400`
[[nodiscard]] inline std::string host_and_port(std::string const& host, std::uint16_t port) {
  bool const is_v6 = host.find(':') != std::string::npos;
  return zbpp::detail::joined(is_v6 ? "[" + host + "]" : host, ":", port);
}

/// @return an address as its machine knows it: sockets of both versions write IPv4 as IPv6
[[nodiscard]] inline ::boost::asio::ip::address plain_address(
    ::boost::asio::ip::address const& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return ::boost::asio::ip::make_address_v4(::boost::asio::ip::v4_mapped, address.to_v6());
}

// Why something failed, in words for people: the system's own, with what to do where that is known,
// and without the places in Boost's source that its exceptions name or a backtrace.

[[nodiscard]] inline bool lacks_descriptors(boost::system::error_code const& code) {
  using namespace boost::system::errc;
  return code == too_many_files_open || code == too_many_files_open_in_system;
}

[[nodiscard]] inline std::string reason_of(boost::system::error_code const& code) {
  auto const cure = lacks_descriptors(code) ? "; allow more file descriptors with ulimit -n" : "";
  return code.message() + cure;
}

[[nodiscard]] inline std::string reason_of(std::exception const& failed) {
  if (auto const* const of_boost = dynamic_cast<boost::system::system_error const*>(&failed))
    return reason_of(of_boost->code());
  if (auto const* const of_system = dynamic_cast<std::system_error const*>(&failed))
    return reason_of(boost::system::error_code(of_system->code()));
  if (dynamic_cast<std::bad_alloc const*>(&failed) != nullptr) return "out of memory";
  return zbpp::detail::text_of(failed);
}

}  // namespace zbpp::asio::detail
