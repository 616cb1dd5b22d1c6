// SPDX-License-Identifier: Apache-2.0
#include "alone.hpp"

#include <chrono>
#include <fcntl.h>
#include <functional>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace zbpp::bench {

std::string run_here(std::function<std::string()> const& body) { return body(); }

std::string run_as_two(
    std::function<std::string(link const&)> const& body, std::chrono::seconds limit) {
  int ends[2];
  int words[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0 ||
      ::pipe2(words, O_CLOEXEC) != 0)
    throw std::runtime_error("there is no pair of sockets");
  auto const other = ::fork();
  if (other < 0) throw std::runtime_error("there is no further process");
  if (other == 0) {
    ::close(ends[0]);
    detail::end_by(words[1], [&] { return body(link(1, ends[1])); });
  }
  ::close(ends[1]);
  ::close(words[1]);
  auto const first = detail::end_of([&] { return body(link(0, ends[0])); });
  ::close(ends[0]);
  ending second;
  if (detail::listen(words[0], limit, second.text)) {
    int status = 0;
    ::waitpid(other, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) second.result = ending::kind::good;
  } else {
    second.text = "it does not end";
    ::kill(other, SIGKILL);  // else this process would be waited for as long as it goes on
  }
  ::close(words[0]);
  return detail::found_by_both(first, second);
}

}  // namespace zbpp::bench
