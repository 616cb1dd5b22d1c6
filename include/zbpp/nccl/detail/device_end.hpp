// SPDX-License-Identifier: Apache-2.0
//
// What becomes of a device when a step has failed: the host waits until it is done, and sees
// whether CUDA goes on there.
#pragma once

#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/runtime/failure.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <thread>

namespace zbpp::nccl::detail {

/// Waits until the device is done with what was issued, whether it succeeded or not. After the
/// abort only a kernel of a pass can hang, which nothing can end, so the wait has a limit.
/// @param is_busy  whether anything runs there but on the streams of passes
template <class IsBusy>
void settle_device(
    cuda::device_context const& context,
    IsBusy const& is_busy,
    std::chrono::milliseconds limit) noexcept {
  auto const end = std::chrono::steady_clock::now() + limit;
  while ((context.is_busy() || is_busy()) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  cudaGetLastError();  // the step has reported it
}

/// A pass that was enqueued behind a receive runs on what its slot holds when the receive is given
/// up. If it faults, CUDA does not go on in this process, which has to know.
/// @param known  what the rank reports already
/// @return that as a failure of the rank; nothing when CUDA goes on, or when it is known
[[nodiscard]] inline std::optional<failure> loss_of_device(
    cuda::device_context const& context, int rank, std::span<failure const> known) {
  auto const state = cudaStreamQuery(context.compute());
  if (state == cudaSuccess || state == cudaErrorNotReady) return {};
  cudaGetLastError();
  auto const tells = [state](failure const& one) {
    try {
      std::rethrow_exception(one.exception);
    } catch (cuda::cuda_error const& e) {
      return e.native() == state;
    } catch (...) {
      return false;
    }
  };
  if (std::ranges::any_of(known, tells)) return {};
  cuda::cuda_error const lost(
      state,
      std::string("a pass that was under way when the step failed has faulted with ") +
          cudaGetErrorName(state) +
          "; CUDA does not go on in this process, so end it and start the run anew");
  return failure{{.rank = rank}, {}, std::make_exception_ptr(lost)};
}

}  // namespace zbpp::nccl::detail
