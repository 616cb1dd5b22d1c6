// SPDX-License-Identifier: Apache-2.0
//
// The command line of the benchmarks in this folder: what to measure, how much of it, and where to
// write it; and what their main functions do with it.
#pragma once

#include <zbpp/error.hpp>

#include <cuda_runtime_api.h>

#include <exception>
#include <initializer_list>
#include <iostream>
#include <string>
#include <string_view>

namespace zbpp::bench {

/// Holds what the command line says.
struct choices {
  std::string_view act;    ///< what to measure
  bool is_short = false;   ///< few sizes, to see that all works
  bool whole_gpu = false;  ///< whether ranks share all of a GPU, and not parts of it
  std::string json;        ///< the file for programs; empty: none
  std::string markdown;    ///< the file for people; empty: none
};

/// Reads `ACT [--short] [--whole-gpu] [--json FILE] [--markdown FILE]`.
/// @throws error (bad_argument)
[[nodiscard]] inline choices read(
    int count, char** arguments, std::initializer_list<std::string_view> acts) {
  auto const refuse = [&](std::string const& what) {
    std::string all;
    for (auto const act : acts) all += (all.empty() ? "" : ", ") + std::string(act);
    throw error(errc::bad_argument) + what + "; give one of " + all +
        ", and then, if you like, --short, --whole-gpu, --json FILE and --markdown FILE";
  };
  choices result;
  for (auto const act : acts)
    if (count > 1 && arguments[1] == act) result.act = act;
  if (result.act.empty()) refuse("nothing says what to measure");
  for (int i = 2; i < count; ++i) {
    std::string_view const name = arguments[i];
    if (name == "--short") {
      result.is_short = true;
    } else if (name == "--whole-gpu") {
      result.whole_gpu = true;
    } else if (name == "--json" && i + 1 < count) {
      result.json = arguments[++i];
    } else if (name == "--markdown" && i + 1 < count) {
      result.markdown = arguments[++i];
    } else {
      refuse("'" + std::string(name) + "' is not understood");
    }
  }
  return result;
}

/// Runs a benchmark as its command line says, where there is a device, and says what goes wrong.
/// @return the exit status: 0; 1 when it fails; 2 when a choice is wrong; 3 without a device
template <class Run>
[[nodiscard]] int run_benchmark(
    char const* name,
    int count,
    char** arguments,
    std::initializer_list<std::string_view> acts,
    Run const& run) {
  try {
    auto const chosen = read(count, arguments, acts);
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      std::cerr << name << ": there is no CUDA device\n";
      return 3;
    }
    run(chosen);
    return 0;
  } catch (error const& failed) {
    std::cerr << name << ": " << failed.what() << '\n';
    return failed.code() == errc::bad_argument ? 2 : 1;
  } catch (std::exception const& failed) {
    std::cerr << name << ": " << failed.what() << '\n';
    return 1;
  }
}

}  // namespace zbpp::bench
