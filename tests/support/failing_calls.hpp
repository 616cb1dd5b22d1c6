// SPDX-License-Identifier: Apache-2.0
//
// Socket calls of a program that fail from some call on, as where a system runs out of buffers or
// descriptors. Included by one file of a program, it takes the place of the C library's own.
#pragma once

#include <atomic>
#include <cerrno>
#include <string>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace zbpp::test {

/// Says which calls fail.
struct failing_calls {
  std::string name = {};  ///< such as `connect`; empty: none
  int from = 1;           ///< the first call that fails, counted from 1
  int reason = ENOBUFS;
  std::atomic<int> count{0};

  /// @return whether this call has to fail; errno is set then
  [[nodiscard]] bool strike(char const* call) {
    if (name != call || ++count < from) return false;
    errno = reason;
    return true;
  }
};

/// @return those of this process; set before any socket is opened
[[nodiscard]] inline failing_calls& failures_of_calls() {
  static failing_calls all;
  return all;
}

template <class... Arguments>
[[nodiscard]] long call_or_fail(char const* name, long number, Arguments... arguments) {
  return failures_of_calls().strike(name) ? -1 : ::syscall(number, arguments...);
}

}  // namespace zbpp::test

extern "C" {

int socket(int domain, int type, int protocol) noexcept {
  return static_cast<int>(zbpp::test::call_or_fail("socket", SYS_socket, domain, type, protocol));
}
int bind(int s, sockaddr const* at, socklen_t size) noexcept {
  return static_cast<int>(zbpp::test::call_or_fail("bind", SYS_bind, s, at, size));
}
int listen(int s, int backlog) noexcept {
  return static_cast<int>(zbpp::test::call_or_fail("listen", SYS_listen, s, backlog));
}
int connect(int s, sockaddr const* to, socklen_t size) {
  return static_cast<int>(zbpp::test::call_or_fail("connect", SYS_connect, s, to, size));
}
int accept(int s, sockaddr* from, socklen_t* size) {
  return static_cast<int>(zbpp::test::call_or_fail("accept", SYS_accept, s, from, size));
}
int setsockopt(int s, int level, int name, void const* value, socklen_t size) noexcept {
  return static_cast<int>(
      zbpp::test::call_or_fail("setsockopt", SYS_setsockopt, s, level, name, value, size));
}
int getsockname(int s, sockaddr* at, socklen_t* size) noexcept {
  return static_cast<int>(zbpp::test::call_or_fail("getsockname", SYS_getsockname, s, at, size));
}
int getpeername(int s, sockaddr* at, socklen_t* size) noexcept {
  return static_cast<int>(zbpp::test::call_or_fail("getpeername", SYS_getpeername, s, at, size));
}
ssize_t sendmsg(int s, msghdr const* parcel, int flags) {
  return zbpp::test::call_or_fail("sendmsg", SYS_sendmsg, s, parcel, flags);
}
ssize_t recvmsg(int s, msghdr* content, int flags) {
  return zbpp::test::call_or_fail("recvmsg", SYS_recvmsg, s, content, flags);
}
ssize_t send(int s, void const* bytes, size_t size, int flags) {
  return zbpp::test::call_or_fail("send", SYS_sendto, s, bytes, size, flags, nullptr, 0);
}
ssize_t recv(int s, void* bytes, size_t size, int flags) {
  return zbpp::test::call_or_fail("recv", SYS_recvfrom, s, bytes, size, flags, nullptr, nullptr);
}

}  // extern "C"
