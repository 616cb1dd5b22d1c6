// SPDX-License-Identifier: Apache-2.0
//
// What `contact` and `contact_nccl` do with their lines: each tries something in processes of its
// own, and says whether it works, else what CUDA or NCCL says, and what that turns off.
#pragma once

#include <zbpp/cuda/error.hpp>

#include <cuda_runtime_api.h>

#include <bench/cuda/alone.hpp>
#include <chrono>
#include <cstdio>
#include <set>
#include <span>
#include <stdexcept>
#include <string>

namespace zbpp::bench {

/// Something that is tried.
struct line {
  char const* name;
  std::string (*tried)();  ///< returns what it found, throws `not_here`, or fails by an exception
  int seconds;             ///< that it may take
  char const* word;        ///< for run_gpu.sh, where it does not work
  char const* turns_off;   ///< for people
};

/// @return how many devices there are
[[nodiscard]] inline int count_devices() {
  int count = 0;
  cuda::check(cudaGetDeviceCount(&count));
  return count;
}

/// Tries all lines; the last line that it prints has the words of those that do not work.
/// @return the exit status: 0 all that is here works, 1 not all, 3 there is no device
[[nodiscard]] inline int try_lines(std::span<line const> lines) {
  auto const there = run_alone(std::chrono::seconds(20), [] {
    if (count_devices() == 0) throw std::runtime_error("there is no CUDA device");
    return std::string();
  });
  if (there.result != ending::kind::good) {
    std::fprintf(stderr, "contact: %s\n", there.text.c_str());
    return 3;
  }
  std::set<std::string> off;
  for (auto const& each : lines) {
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

}  // namespace zbpp::bench
