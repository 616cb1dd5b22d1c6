// SPDX-License-Identifier: Apache-2.0
//
// What programs on the model take from the environment, as CUDA does: the number of hardware
// queues, and when kernels are loaded.
#pragma once

#include "cuda_model.hpp"
#include <zbpp/cuda/device_needs.hpp>

#include <cstdlib>
#include <string_view>

namespace zbpp::cuda_model {

/// @return whether CUDA loads a kernel when it is first launched, its default, by
///         CUDA_MODULE_LOADING
[[nodiscard]] inline bool loads_late() {
  char const* const stated = std::getenv("CUDA_MODULE_LOADING");
  return stated == nullptr || std::string_view(stated) != "EAGER";
}

/// Gives a machine the hardware queues of CUDA_DEVICE_MAX_CONNECTIONS, and first launches that may
/// wait where kernels are loaded late.
[[nodiscard]] inline options as_in_environment(options machine) {
  machine.connections = cuda::device_connections();
  machine.drains = loads_late();
  return machine;
}

}  // namespace zbpp::cuda_model
