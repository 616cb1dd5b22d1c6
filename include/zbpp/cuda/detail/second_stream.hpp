// SPDX-License-Identifier: Apache-2.0
//
// The stream on which the second pass of a pair runs beside the first one: it leaves the rank's
// stream in front of the pair and comes back after it.
#pragma once

#include <zbpp/cuda/detail/driver_api.hpp>
#include <zbpp/cuda/handles.hpp>

#include <cuda.h>

#include <utility>

namespace zbpp::cuda::detail {

/// @return the green context in which a stream was made; null when it was made in none
/// @throws cuda_error
[[nodiscard]] inline CUgreenCtx green_context_of(stream_ref on) {
  using home_function = PFN_cuStreamGetGreenCtx_v12040;
  auto const home_of = find_driver_function<home_function>("cuStreamGetGreenCtx", 12040);
  CUgreenCtx home = nullptr;  // an older driver has none
  if (home_of != nullptr) check_driver(home_of(on, &home));
  return home;
}

/// Makes a stream like one of the caller's: of its priority, and confined to the same
/// multiprocessors where it was made in a green context.
/// @throws error (device_failed) for a green context of a driver before CUDA 12.5; cuda_error
[[nodiscard]] inline stream make_beside(stream_ref adopted) {
  int priority = 0;
  check(cudaStreamGetPriority(adopted, &priority));
  cudaStream_t made = nullptr;
  if (auto* const home = green_context_of(adopted); home != nullptr)
    check_driver(driver_function<PFN_cuGreenCtxStreamCreate_v12050>(
        "cuGreenCtxStreamCreate", 12050)(&made, home, CU_STREAM_NON_BLOCKING, priority));
  else
    check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, priority));
  return stream(made);
}

/// Holds the stream and the events of its two ends.
class second_stream {
 public:
  /// @param own  made for the rank's device, which is current
  /// @throws cuda_error
  explicit second_stream(stream own) : own_(std::move(own)) {}

  [[nodiscard]] stream_ref view() const { return own_; }
  /// Lets it wait for what stands in front of the pair. @throws cuda_error
  void fork(stream_ref first) const {
    first.record(forked_);
    view().wait(forked_);
  }
  /// Lets what stands after the pair wait for it. @throws cuda_error
  void join(stream_ref first) const {
    view().record(joined_);
    first.wait(joined_);
  }

 private:
  stream own_;
  event forked_{event_kind::order};
  event joined_{event_kind::order};
};

}  // namespace zbpp::cuda::detail
