// SPDX-License-Identifier: Apache-2.0
//
// Runs something in a process of its own, or in two, within a time, so that whatever hangs or
// breaks there breaks nothing else. The program that calls this has not used CUDA before. What
// happens in the process is in alone.cpp; on the model of CUDA, which is in one process, in
// alone_model.cpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <functional>
#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

namespace zbpp::bench {

/// Says that something cannot be tried here, and why.
struct not_here {
  std::string why;
};

/// Says how something ended.
struct ending {
  enum class kind { good, bad, not_here } result = kind::bad;
  std::string text;
};

/// Runs `body` in this process; on the model with two devices, and what the model then finds wrong
/// is an exception.
/// @return what `body` found
[[nodiscard]] std::string run_here(std::function<std::string()> const& body);

namespace detail {

inline void say(int to, std::string const& text) {
  if (::write(to, text.data(), text.size()) < 0) std::_Exit(3);
}

// Ends the process by what `body` does; leaves out destructors of the program, which may hang.
[[noreturn]] inline void end_by(int to, std::function<std::string()> const& body) {
  try {
    say(to, body());
    std::_Exit(0);
  } catch (not_here const& reason) {
    say(to, reason.why);
    std::_Exit(2);
  } catch (std::exception const& failed) {
    say(to, failed.what());
    std::_Exit(1);
  }
}

// Reads what a process says until nobody can say more. @return whether that came in time
inline bool listen(int from, std::chrono::seconds limit, std::string& heard) {
  auto const end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd waiting{.fd = from, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) return false;
    char some[512];
    auto const size = ::read(from, some, sizeof some);
    if (size <= 0) return true;
    heard.append(some, static_cast<std::size_t>(size));
  }
}

// @return what rank 0 found, where both ranks ended well
inline std::string found_by_both(ending const& first, ending const& second) {
  auto const is_good = [](ending const& one) { return one.result == ending::kind::good; };
  if (!is_good(second))
    throw std::runtime_error(
        "rank 1: " + second.text + (is_good(first) ? "" : "; rank 0: " + first.text));
  if (!is_good(first)) throw std::runtime_error("rank 0: " + first.text);
  return first.text;
}

// @return what becomes of `body`, which is not to end the process
inline ending end_of(std::function<std::string()> const& body) {
  try {
    return {ending::kind::good, body()};
  } catch (std::exception const& failed) {
    return {ending::kind::bad, failed.what()};
  }
}

}  // namespace detail

/// Runs `body`, which returns what it found, throws `not_here`, or fails by an exception.
[[nodiscard]] inline ending run_alone(
    std::chrono::seconds limit, std::function<std::string()> const& body) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("there is no pipe");
  auto const child = ::fork();
  if (child < 0) throw std::runtime_error("there is no further process");
  if (child == 0) {
    ::setpgid(0, 0);  // so that a signal reaches those that it starts
    detail::end_by(ends[1], [&body] { return run_here(body); });
  }
  ::close(ends[1]);
  ending found;
  bool const in_time = detail::listen(ends[0], limit, found.text);
  ::close(ends[0]);
  ::kill(-child, SIGKILL);
  if (!in_time) {
    found.text += (found.text.empty() ? "" : "; ") + std::string("it did not end within ") +
                  std::to_string(limit.count()) + " s";
    return found;  // the system ends it when the driver lets go
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) found.result = ending::kind::good;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) found.result = ending::kind::not_here;
  if (WIFSIGNALED(status) && found.text.empty())
    found.text = "signal " + std::to_string(WTERMSIG(status)) + " ended it";
  return found;
}

/// One end of a connection between two processes.
class link {
 public:
  link(int rank, int file) : rank_(rank), file_(file) {}

  [[nodiscard]] int rank() const { return rank_; }
  /// Sends a plain value.
  template <class Value>
  void send(Value const& value) const {
    if (::send(file_, &value, sizeof value, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof value))
      throw std::runtime_error("the other process has ended");
  }
  template <class Value>
  [[nodiscard]] Value receive() const {
    Value value;
    if (::recv(file_, &value, sizeof value, MSG_WAITALL) != static_cast<ssize_t>(sizeof value))
      throw std::runtime_error("the other process has ended");
    return value;
  }
  /// Waits until the other process is here, too.
  void meet() const {
    send('.');
    static_cast<void>(receive<char>());
  }

 private:
  int rank_;
  int file_;
};

/// Runs `body` in two processes, ranks 0 and 1; to be called within `run_alone`. On the model they
/// are two threads.
/// @param limit  of rank 1 once rank 0 has ended; threads have none
/// @return what rank 0 found
[[nodiscard]] std::string run_as_two(
    std::function<std::string(link const&)> const& body,
    std::chrono::seconds limit = std::chrono::seconds(5));

}  // namespace zbpp::bench
