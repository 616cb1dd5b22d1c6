// SPDX-License-Identifier: Apache-2.0
//
// Somebody who connects to a port of a run without belonging to it: a socket that never blocks for
// long, and where the ports are.
#pragma once

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <poll.h>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Is a connection to a port of this host, closed with the object.
class stranger {
 public:
  /// Connects within two seconds, or does not.
  explicit stranger(std::uint16_t port)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    bool const began = ::connect(socket_, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0 ||
                       errno == EINPROGRESS;
    int failure = 0;
    socklen_t size = sizeof(failure);
    is_connected_ = began && wait_for(POLLOUT, std::chrono::seconds(2)) &&
                    ::getsockopt(socket_, SOL_SOCKET, SO_ERROR, &failure, &size) == 0 &&
                    failure == 0;
  }
  stranger(stranger&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), is_connected_(other.is_connected_) {}
  stranger& operator=(stranger&&) = delete;
  ~stranger() {
    if (socket_ >= 0) ::close(socket_);
  }

  [[nodiscard]] bool is_connected() const noexcept { return is_connected_; }
  /// Sends what the kernel takes; whether anybody reads it does not matter.
  void say(std::span<std::byte const> bytes) const {
    static_cast<void>(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  /// Says that nothing more will come.
  void close_half() const { ::shutdown(socket_, SHUT_WR); }
  /// Has the connection end by a reset rather than politely.
  void end_rudely() const {
    linger const now{1, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  /// Hears until as many bytes have come, the other side has closed, or the time is over.
  /// @return what has come
  [[nodiscard]] std::vector<std::byte> hear(
      std::size_t count, std::chrono::milliseconds patience) const {
    auto const deadline = std::chrono::steady_clock::now() + patience;
    std::vector<std::byte> heard(count);
    std::size_t size = 0;
    while (size < count) {
      auto const left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0 || !wait_for(POLLIN, left)) break;
      auto const got = ::recv(socket_, heard.data() + size, count - size, 0);
      if (got <= 0) break;
      size += static_cast<std::size_t>(got);
    }
    heard.resize(size);
    return heard;
  }

 private:
  [[nodiscard]] bool wait_for(short events, std::chrono::milliseconds patience) const {
    pollfd here{socket_, events, 0};
    return ::poll(&here, 1, static_cast<int>(patience.count())) == 1;
  }

  int socket_;
  bool is_connected_ = false;
};

/// @return the TCP ports of IPv4 that a process listens on
[[nodiscard]] inline std::set<std::uint16_t> ports_of(::pid_t process) {
  auto const root = "/proc/" + std::to_string(process);
  std::set<std::string> own;  // as in socket:[12345]
  for (auto const& entry : std::filesystem::directory_iterator(root + "/fd")) {
    std::error_code closed;
    own.insert(std::filesystem::read_symlink(entry.path(), closed).string());
  }
  std::set<std::uint16_t> ports;
  std::ifstream table(root + "/net/tcp");
  std::string line;
  std::getline(table, line);  // the titles
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::vector<std::string> column;
    for (std::string word; words >> word;) column.push_back(word);
    bool const listens = column.size() > 9 && column[3] == "0A";
    if (listens && own.contains("socket:[" + column[9] + "]"))
      ports.insert(static_cast<std::uint16_t>(
          std::stoul(column[1].substr(column[1].find(':') + 1), nullptr, 16)));
  }
  return ports;
}

}  // namespace zbpp::test
