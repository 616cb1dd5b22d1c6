// SPDX-License-Identifier: Apache-2.0
//
// Programs that a test starts, signals and waits for. None outlives its object, and no wait is
// without an end.
#pragma once

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <netinet/in.h>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Is a running program. Both of its outputs go to memory.
class process {
 public:
  /// Starts a program.
  /// @param environment  added to that of the test
  /// @throws std::system_error
  process(
      std::vector<std::string> arguments,
      std::vector<std::pair<std::string, std::string>> const& environment)
      : output_(::memfd_create("output", 0)) {
    check(output_ >= 0, "memfd_create");
    std::vector<char*> argv;
    for (auto& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    std::vector<std::string> assignments;
    for (char** e = environ; *e != nullptr; ++e) assignments.emplace_back(*e);
    for (auto const& [name, value] : environment) assignments.push_back(name + "=" + value);
    std::vector<char*> envp;
    // The last assignment of a name is the first that getenv finds when they are turned round.
    for (auto a = assignments.rbegin(); a != assignments.rend(); ++a) envp.push_back(a->data());
    envp.push_back(nullptr);
    pid_ = ::fork();
    check(pid_ >= 0, "fork");
    if (pid_ == 0) {
      ::dup2(output_, STDOUT_FILENO);
      ::dup2(output_, STDERR_FILENO);
      ::execve(argv[0], argv.data(), envp.data());
      ::_exit(127);
    }
    watch_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
    check(watch_ >= 0, "pidfd_open");
  }
  process(process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        watch_(std::exchange(other.watch_, -1)),
        output_(std::exchange(other.output_, -1)),
        status_(other.status_) {}
  process& operator=(process&&) = delete;
  ~process() {
    if (pid_ > 0 && !status_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    if (watch_ >= 0) ::close(watch_);
    if (output_ >= 0) ::close(output_);
  }

  /// @return its number, for /proc
  [[nodiscard]] ::pid_t id() const noexcept { return pid_; }

  /// Sends a signal.
  void signal(int number) const { ::kill(pid_, number); }

  /// Waits until the program has ended.
  /// @return its exit status, 128 + n when signal n ended it; nothing when it has not ended by then
  std::optional<int> wait_until(std::chrono::steady_clock::time_point deadline) {
    while (!status_) {
      auto const left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) return std::nullopt;
      pollfd ended{watch_, POLLIN, 0};
      if (::poll(&ended, 1, static_cast<int>(left.count())) != 1) continue;
      int status = 0;
      ::waitpid(pid_, &status, 0);
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return status_;
  }

  /// @return what it has written so far, both outputs
  [[nodiscard]] std::string output() const {
    std::string text;
    std::array<char, 4096> part{};
    for (::off_t at = 0;;) {
      auto const count = ::pread(output_, part.data(), part.size(), at);
      if (count <= 0) return text;
      text.append(part.data(), static_cast<std::size_t>(count));
      at += count;
    }
  }

 private:
  static void check(bool good, char const* call) {
    if (!good) throw std::system_error(errno, std::generic_category(), call);
  }

  ::pid_t pid_ = -1;
  int watch_ = -1;
  int output_ = -1;
  std::optional<int> status_;
};

/// @return a TCP port of this host for who binds to it with SO_REUSEADDR; the system gives it to
///         nobody else as long as this process lives
[[nodiscard]] inline std::uint16_t free_port() {
  // Stays bound, and does not listen, so that whoever connects too early is refused.
  int const s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int const on = 1;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  bool const good = ::setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
                    ::bind(s, address, size) == 0 && ::getsockname(s, address, &size) == 0;
  if (!good) throw std::system_error(errno, std::generic_category(), "bind");
  return ntohs(at.sin_port);
}

}  // namespace zbpp::test
