// SPDX-License-Identifier: Apache-2.0
//
// What `contact`, `contact_nccl` and `contact_cublas` try: a line each. contact_lines.cpp, which
// has the main function of all, tries each in processes of its own, and says whether it works, else
// what CUDA or NCCL says, and what that turns off. Exit status: 0 all that is here works, 1 not
// all, 3 there is no device.
#pragma once

#include <zbpp/cuda/error.hpp>

#include <cuda_runtime_api.h>

#include <span>
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

/// Is what is turned off where something does not work on parts of a GPU.
inline constexpr char const* no_parts = "ranks share the whole GPU (--whole-gpu)";

/// @return what a program tries, in this order; each program defines its own
[[nodiscard]] std::span<line const> lines();

}  // namespace zbpp::bench
