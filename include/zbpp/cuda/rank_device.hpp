// SPDX-License-Identifier: Apache-2.0
//
// Where a rank runs: which GPU, on which stream; and what a pass may ask about that.
#pragma once

#include <zbpp/cuda/handles.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <vector>

namespace zbpp::cuda {

/// Says where a rank computes.
struct rank_device {
  int device = 0;                  ///< number of the device in the CUDA runtime
  cudaStream_t compute = nullptr;  ///< the caller's stream for it; null: one is made
  /// Multiprocessors that the caller's stream is confined to; 0: the whole device.
  int sm_count = 0;
};

[[nodiscard]] inline std::vector<rank_device> one_device_per_rank(int ranks) {
  std::vector<rank_device> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back({.device = rank});
  return devices;
}

/// @throws error (bad_argument) when it does not run on a GPU
[[nodiscard]] inline stream_ref stream_of(pass_context const& ctx);
/// @throws error (bad_argument) when it does not run on a GPU
[[nodiscard]] inline int device_of(pass_context const& ctx);
/// @return how many multiprocessors a pass has, for libraries that choose kernels by it
/// @throws error (bad_argument) when it does not run on a GPU
[[nodiscard]] inline int sm_count(pass_context const& ctx);

/// Gives where a kernel of the pass writes the loss of a microbatch, which the step's result then
/// has: one float in memory of the host that the device writes itself, so nothing is copied and the
/// next pass waits for nothing. Write it once; reading it is slow. If not written, it is NaN.
/// @return its address on the device
/// @throws error (wrong_flow) when this is not the last stage; (bad_argument) when the pass does
///         not run on a GPU, or while its work is captured; cuda_error
[[nodiscard]] inline float* loss_slot(microbatch const& mb, pass_context const& ctx);
/// States the loss of a microbatch where a library has computed it: enqueues a copy of the value
/// after the work of the pass, which the next pass waits for.
/// @param on_device  one float in device memory
/// @throws error (wrong_flow) when this is not the last stage; (bad_argument) when the pass does
///         not run on a GPU, or while its work is captured; cuda_error
inline void report_loss(microbatch const& mb, pass_context const& ctx, float const* on_device);

}  // namespace zbpp::cuda

#include <zbpp/cuda/device_context.hpp>
