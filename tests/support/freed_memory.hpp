// SPDX-License-Identifier: Apache-2.0
//
// Whether the C library keeps the memory of freed tensors, as its own counts say.
#pragma once

#include <support/environment_variable.hpp>

#include <cstdint>
#include <torch/types.h>

#if defined(__GLIBC__)
#include <malloc.h>
#if __GLIBC_PREREQ(2, 33)
#define ZBPP_TEST_COUNTS_BLOCKS
#endif
#endif

namespace zbpp::test {

/// Leaves out while it lives what the environment says of these thresholds.
struct no_malloc_variables {
  environment_variable map{"MALLOC_MMAP_THRESHOLD_", nullptr};
  environment_variable trim{"MALLOC_TRIM_THRESHOLD_", nullptr};
  environment_variable tunables{"GLIBC_TUNABLES", nullptr};
};

/// Whether this C library tells what it does with a tensor.
#if defined(ZBPP_TEST_COUNTS_BLOCKS)
inline constexpr bool tells_of_freed_memory = true;
#else
inline constexpr bool tells_of_freed_memory = false;
#endif

/// Whether a large tensor lies in a block that the system maps for it alone, and that goes back as
/// soon as it is freed. Without that, its memory is kept for the next one.
[[nodiscard]] inline bool gives_tensors_back() {
  constexpr std::int64_t numbers = 1 << 24;  // larger than what glibc adapts to by itself
  static_cast<void>(at::empty({numbers}));   // what lies free in the heap goes back with it
#if defined(ZBPP_TEST_COUNTS_BLOCKS)
  auto const before = ::mallinfo2().hblks;
  auto const tensor = at::empty({numbers});
  return ::mallinfo2().hblks > before;
#else
  return false;
#endif
}

}  // namespace zbpp::test
