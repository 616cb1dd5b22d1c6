// SPDX-License-Identifier: Apache-2.0
//
// Finds functions of the CUDA driver that have no counterpart in the runtime when they are needed,
// so nothing links the driver's library; a driver that lacks one is reported as an error. Those
// that make green contexts are listed, with the choice of how to group multiprocessors.
#pragma once

#include <zbpp/cuda/error.hpp>
#include <zbpp/error.hpp>

#include <cudaTypedefs.h>

#include <algorithm>
#include <string>

namespace zbpp::cuda::detail {

/// @return a CUDA version as people write it, such as 12.5 for 12050
[[nodiscard]] inline std::string version_text(int version) {
  return zbpp::detail::joined(version / 1000, ".", version % 1000 / 10);
}

/// Finds a function of the driver as it has been since a version, such as 12050.
/// @tparam Function  its type from cudaTypedefs.h, of the same version
/// @return null when the driver is older
/// @throws cuda_error
template <class Function>
[[nodiscard]] Function find_driver_function(char const* name, int since) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
  auto const status = cudaGetDriverEntryPointByVersion(
      name, &found, static_cast<unsigned>(since), cudaEnableDefault, &answer);
  bool const is_missing = answer != cudaDriverEntryPointSuccess || found == nullptr;
  if (is_missing && (status == cudaSuccess || status == cudaErrorSymbolNotFound)) {
    cudaGetLastError();  // so that the next check does not find it again
    return nullptr;
  }
  check(status);
  return reinterpret_cast<Function>(found);
}

/// Finds a function of the driver, as above.
/// @throws error (device_failed) when the driver is older; cuda_error
template <class Function>
[[nodiscard]] Function driver_function(char const* name, int since) {
  if (auto const found = find_driver_function<Function>(name, since); found != nullptr)
    return found;
  int installed = 0;
  check(cudaDriverGetVersion(&installed));
  throw error(errc::device_failed) + "the driver has no " + name + "; it needs CUDA " +
      version_text(since) + ", and the installed driver is for CUDA " + version_text(installed) +
      ", so install a newer one";
}

/// Does nothing for success of a driver's function, else throws. The runtime uses the same codes.
/// @throws cuda_error (device_failed)
inline void check_driver(
    CUresult status, std::source_location at = std::source_location::current()) {
  check(static_cast<cudaError_t>(status), at);
}

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
    throw error(errc::bad_argument) + "the device cannot be cut into " + parts + " parts; with " +
        whole.sm.smCount + " multiprocessors in groups of at least " + least +
        " it makes at most " + most_parts;
  return best;
}

}  // namespace zbpp::cuda::detail
