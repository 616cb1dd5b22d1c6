// SPDX-License-Identifier: Apache-2.0
//
// The driver's functions for green contexts, and the choice of how to group multiprocessors.
#pragma once

#include <zbpp/cuda/detail/driver_api.hpp>
#include <zbpp/error.hpp>

#include <algorithm>
#include <string>

namespace zbpp::cuda::detail {

/// Holds the driver's functions that make green contexts.
struct green_functions {
  PFN_cuDeviceGet_v2000 device_get = driver_function<PFN_cuDeviceGet_v2000>("cuDeviceGet", 2000);
  PFN_cuDeviceGetDevResource_v12040 resource_of =
      driver_function<PFN_cuDeviceGetDevResource_v12040>("cuDeviceGetDevResource", 12040);
  PFN_cuDevSmResourceSplitByCount_v12040 split =
      driver_function<PFN_cuDevSmResourceSplitByCount_v12040>("cuDevSmResourceSplitByCount", 12040);
  PFN_cuDevResourceGenerateDesc_v12040 describe =
      driver_function<PFN_cuDevResourceGenerateDesc_v12040>("cuDevResourceGenerateDesc", 12040);
  PFN_cuGreenCtxCreate_v12040 create =
      driver_function<PFN_cuGreenCtxCreate_v12040>("cuGreenCtxCreate", 12040);
  PFN_cuGreenCtxDestroy_v12040 destroy =
      driver_function<PFN_cuGreenCtxDestroy_v12040>("cuGreenCtxDestroy", 12040);
  PFN_cuGreenCtxStreamCreate_v12050 make_stream =
      driver_function<PFN_cuGreenCtxStreamCreate_v12050>("cuGreenCtxStreamCreate", 12050);
};

/// Says how multiprocessors are grouped: each part gets `groups` groups of `size`.
struct grouping {
  unsigned size = 0;
  unsigned groups = 0;

  [[nodiscard]] unsigned share() const noexcept { return size * groups; }
};

/// Finds the equal parts that leave the fewest multiprocessors unused. Tries all sizes of a group,
/// since the driver may make fewer large groups than the numbers suggest, and prefers large groups.
/// @throws error (bad_argument) when there are fewer parts than that; cuda_error
[[nodiscard]] inline grouping best_grouping(
    PFN_cuDevSmResourceSplitByCount_v12040 split, CUdevResource const& whole, unsigned parts) {
#if CUDA_VERSION >= 13000
  auto const least = std::max(whole.sm.minSmPartitionSize, 1U);
  auto const stride = std::max(whole.sm.smCoscheduledAlignment, 1U);
#else  // CUDA 12 does not tell; these suit every device
  constexpr unsigned least = 8;
  constexpr unsigned stride = 8;
#endif
  grouping best;
  unsigned most_parts = 0;
  for (unsigned size = least; size <= whole.sm.smCount; size += stride) {
    unsigned possible = 0;
    auto const status = split(nullptr, &possible, &whole, nullptr, 0, size);
    if (status == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION) continue;  // another size may do
    check_driver(status);
    most_parts = std::max(most_parts, possible);
    grouping const now{size, possible / parts};
    if (now.groups > 0 && now.share() >= best.share()) best = now;
  }
  if (best.groups == 0)
    throw error(
        errc::bad_argument,
        "the device cannot be cut into " + std::to_string(parts) + " parts; with " +
            std::to_string(whole.sm.smCount) + " multiprocessors in groups of at least " +
            std::to_string(least) + " it makes at most " + std::to_string(most_parts));
  return best;
}

}  // namespace zbpp::cuda::detail
