// SPDX-License-Identifier: Apache-2.0
//
// The sockets of this process, for tests that break them behind its back. They do so by system
// calls of their own, which sanitizers do not see: that somebody else may close a socket meanwhile
// is what such a test is about.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <netinet/in.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace zbpp::test {

/// Ends both directions of a connection.
inline void break_connection(int socket) { ::syscall(SYS_shutdown, socket, SHUT_RDWR); }
/// Writes bytes that do not belong into a connection.
inline void write_into(int socket, std::string_view bytes) {
  ::syscall(SYS_sendto, socket, bytes.data(), bytes.size(), MSG_NOSIGNAL, nullptr, 0);
}

/// Calls `visit(descriptor, own_end, other_end)` for every connected TCP socket.
template <class Visit>
void for_sockets(Visit visit) {
  constexpr int most_descriptors = 1024;
  for (int s = 3; s < most_descriptors; ++s) {
    sockaddr_storage here{};
    sockaddr_storage there{};
    socklen_t size = sizeof(here);
    if (::syscall(SYS_getsockname, s, &here, &size) != 0) continue;
    size = sizeof(there);
    if (::syscall(SYS_getpeername, s, &there, &size) != 0) continue;
    visit(s, here, there);
  }
}

/// Calls `visit(descriptor)` for every connected TCP socket, apart from those of the port that
/// MASTER_PORT names: the sockets that messages between stages take.
template <class Visit>
void for_data_sockets(Visit visit) {
  char const* const text = std::getenv("MASTER_PORT");
  auto const meeting = text == nullptr ? 0 : std::stoi(text);
  auto const port_of = [](sockaddr_storage const& at) -> int {
    if (at.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in const&>(at).sin_port);
    if (at.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6 const&>(at).sin6_port);
    return -1;
  };
  for_sockets([&](int s, sockaddr_storage const& here, sockaddr_storage const& there) {
    if (port_of(here) < 0 || port_of(here) == meeting || port_of(there) == meeting) return;
    visit(s);
  });
}

}  // namespace zbpp::test
