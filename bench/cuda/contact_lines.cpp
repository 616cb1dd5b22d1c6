// SPDX-License-Identifier: Apache-2.0
#include "contact_lines.hpp"

#include "alone.hpp"

#include <chrono>
#include <cstdio>
#include <set>
#include <stdexcept>
#include <string>

namespace zbpp::bench {
namespace {

// The last line that it prints has the words of those that do not work.
int try_lines() {
  auto const there = run_alone(std::chrono::seconds(20), [] {
    if (count_devices() == 0) throw std::runtime_error("there is no CUDA device");
    return std::string();
  });
  if (there.result != ending::kind::good) {
    std::fprintf(stderr, "contact: %s\n", there.text.c_str());
    return 3;
  }
  std::set<std::string> off;
  for (auto const& each : lines()) {
    std::printf("%s: ", each.name);
    std::fflush(stdout);  // before there are two processes
    auto const found = run_alone(std::chrono::seconds(each.seconds), each.tried);
    auto const more = found.text.empty() ? "" : ", " + found.text;
    if (found.result == ending::kind::good) {
      std::printf("works%s\n", more.c_str());
    } else if (found.result == ending::kind::not_here) {
      std::printf("not tried%s\n", more.c_str());
    } else {
      std::printf("DOES NOT WORK%s; turns off: %s\n", more.c_str(), each.turns_off);
      off.insert(each.word);
    }
  }
  std::printf("turned off:");
  for (auto const& each : off) std::printf(" %s", each.c_str());
  std::printf("%s\n", off.empty() ? " nothing" : "");
  return off.empty() ? 0 : 1;
}

}  // namespace
}  // namespace zbpp::bench

int main() { return zbpp::bench::try_lines(); }
