// SPDX-License-Identifier: Apache-2.0
//
// Memory of tensors on the host: whether what is freed stays with the process for the next tensors.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <limits>

namespace zbpp::torch {

/// Has the C library keep the memory of freed tensors for the next ones, for the whole process.
///
/// What glibc gives back to the system takes a page fault for every 4 KiB in the next pass. Call it
/// before the first tensor is made. What is kept is at most what was in use at a time.
/// @param largest  the largest block that is kept; 0 stands for the 128 KiB that glibc begins with,
///                 which it then no longer adapts to what is freed
/// @return whether the C library follows; false where it is not glibc
/// @throws error (bad_argument) when `largest` is negative
/// @source mallopt(3): M_MMAP_THRESHOLD and M_TRIM_THRESHOLD
inline bool keep_freed_memory(bytes largest = bytes{1} << 30) {
  zbpp::detail::require(largest >= 0, "keep_freed_memory takes the size of a block, from 0 bytes");
#if defined(__GLIBC__)
  constexpr bytes usual = 128 * 1024;
  constexpr bytes most = std::numeric_limits<int>::max();
  auto const threshold = static_cast<int>(std::min(largest == 0 ? usual : largest, most));
  return mallopt(M_MMAP_THRESHOLD, threshold) == 1 && mallopt(M_TRIM_THRESHOLD, threshold) == 1;
#else
  return false;
#endif
}

}  // namespace zbpp::torch
