// SPDX-License-Identifier: Apache-2.0
//
// Finds functions of the CUDA driver that have no counterpart in the runtime when they are needed,
// so nothing links the driver's library; a driver that lacks one is reported as an error.
#pragma once

#include <zbpp/cuda/error.hpp>

#include <cudaTypedefs.h>

#include <string>

namespace zbpp::cuda::detail {

/// @return a CUDA version as people write it, such as 12.5 for 12050
[[nodiscard]] inline std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
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
  throw error(
      errc::device_failed,
      std::string("the driver has no ") + name + "; it needs CUDA " + version_text(since) +
          ", and the installed driver is for CUDA " + version_text(installed) +
          ", so install a newer one");
}

/// Does nothing for success of a driver's function, else throws. The runtime uses the same codes.
/// @throws cuda_error (device_failed)
inline void check_driver(
    CUresult status, std::source_location at = std::source_location::current()) {
  check(static_cast<cudaError_t>(status), at);
}

}  // namespace zbpp::cuda::detail
