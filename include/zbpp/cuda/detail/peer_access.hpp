// SPDX-License-Identifier: Apache-2.0
//
// Lets one device read the memory of another where the hardware can; otherwise CUDA copies by way
// of the host.
#pragma once

#include <zbpp/cuda/handles.hpp>

#include <cuda_runtime_api.h>

namespace zbpp::cuda::detail {

/// @throws cuda_error
inline void enable_peer_access(int device, int other) {
  int can = 0;
  if (device != other) check(cudaDeviceCanAccessPeer(&can, device, other));
  if (can == 0) return;
  device_guard const here(device);
  auto const status = cudaDeviceEnablePeerAccess(other, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    check(status);
}

}  // namespace zbpp::cuda::detail
