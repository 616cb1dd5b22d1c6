// SPDX-License-Identifier: Apache-2.0
//
// How many hardware queues the streams of a device share. In a queue a stream that waits holds up
// those behind it.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace zbpp::cuda {

/// The most hardware queues that CUDA gives a process on a device.
/// @source CUDA C++ Programming Guide, CUDA Environment Variables, CUDA_DEVICE_MAX_CONNECTIONS
inline constexpr int most_device_connections = 32;

/// @return how many hardware queues the streams of a device share: CUDA_DEVICE_MAX_CONNECTIONS, as
///         the environment sets it, which CUDA reads once; 8 by default
[[nodiscard]] inline int device_connections() noexcept {
  char const* const stated = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  int const count = stated == nullptr ? 0 : std::atoi(stated);
  return count < 1 ? 8 : std::min(count, most_device_connections);
}

}  // namespace zbpp::cuda
