// SPDX-License-Identifier: Apache-2.0
//
// Tests that what hangs, crashes or fails in processes of its own is told, and breaks nothing else.
#include <bench/cuda/alone.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <unistd.h>

namespace {

using zbpp::bench::ending;

bool all_good = true;

void expect(char const* name, ending const& found, ending::kind result, std::string const& text) {
  if (found.result == result && found.text == text) return;
  all_good = false;
  std::printf("FAILED, %s: it says '%s'\n", name, found.text.c_str());
}

ending alone(std::function<std::string()> const& body) {
  return zbpp::bench::run_alone(std::chrono::seconds(2), body);
}

ending two(
    std::function<std::string(zbpp::bench::link const&)> const& body,
    std::chrono::seconds limit = std::chrono::seconds(5)) {
  return alone([&] { return zbpp::bench::run_as_two(body, limit); });
}

std::string hang() {
  for (;;) ::pause();
}

}  // namespace

int main() {
  using enum ending::kind;
  expect("a good end", alone([] { return std::string("7 ms"); }), good, "7 ms");
  expect("a failure", alone([]() -> std::string { throw std::runtime_error("no"); }), bad, "no");
  expect(
      "what cannot be tried",
      alone([]() -> std::string { throw zbpp::bench::not_here{"one GPU"}; }),
      not_here,
      "one GPU");
  expect("a hang", alone(hang), bad, "it did not end within 2 s");
  expect("a crash", alone([]() -> std::string { std::abort(); }), bad, "signal 6 ended it");

  expect(
      "two processes",
      two([](auto const& to) {
        if (to.rank() == 1) {
          to.send(42);
          return std::string();
        }
        return std::to_string(to.template receive<int>());
      }),
      good,
      "42");
  auto const fails = [](int rank) {
    return [rank](zbpp::bench::link const& to) -> std::string {
      if (to.rank() == rank) throw std::runtime_error("no");
      to.meet();
      return {};
    };
  };
  expect("rank 0 fails", two(fails(0)), bad, "rank 1: the other process has ended; rank 0: no");
  expect("rank 1 fails", two(fails(1)), bad, "rank 1: no; rank 0: the other process has ended");
  expect(
      "rank 1 hangs",
      two([](auto const& to) { return to.rank() == 1 ? hang() : std::string(); }),
      bad,
      "it did not end within 2 s");
  expect(
      "rank 1 hangs, and rank 0 says so",
      two([](auto const& to) { return to.rank() == 1 ? hang() : std::string(); },
          std::chrono::seconds(1)),
      bad,
      "rank 1: it does not end");
  return all_good ? 0 : 1;
}
