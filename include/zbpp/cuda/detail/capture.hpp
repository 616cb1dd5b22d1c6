// SPDX-License-Identifier: Apache-2.0
//
// A stream capture that is under way, and the graph that comes of it.
#pragma once

#include <zbpp/cuda/handles.hpp>

namespace zbpp::cuda::detail {

/// Owns a graph that can be launched.
using executable_graph = unique_handle<cudaGraphExec_t, cudaGraphExecDestroy>;

/// @return what has become of the capture that a stream is in, if it is in one
/// @throws cuda_error
[[nodiscard]] inline cudaStreamCaptureStatus capture_status(stream_ref on) {
  auto now = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(on, &now));
  return now;
}

/// @throws cuda_error
[[nodiscard]] inline bool is_captured(stream_ref on) {
  return capture_status(on) != cudaStreamCaptureStatusNone;
}

/// Captures a stream for its lifetime, with those that wait for it, and leaves no capture behind,
/// however it ends.
class capture {
 public:
  /// @throws cuda_error
  explicit capture(stream_ref origin) : origin_(origin) {
    // Other threads, such as NCCL's, may call CUDA meanwhile.
    check(cudaStreamBeginCapture(origin_, cudaStreamCaptureModeThreadLocal));
  }
  capture(capture const&) = delete;
  capture& operator=(capture const&) = delete;
  ~capture() {
    if (!is_open_) return;
    cudaGraph_t partial = nullptr;
    end(&partial);
    graph const discarded(partial);
    cudaGetLastError();  // whoever threw knows that the capture failed
  }

  /// Ends it. @throws cuda_error
  [[nodiscard]] executable_graph finish() {
    cudaGraph_t captured = nullptr;
    check(end(&captured));
    graph const whole(captured);
    cudaGraphExec_t made = nullptr;
    check(cudaGraphInstantiate(&made, whole.get(), 0));
    return executable_graph(made);
  }

 private:
  using graph = unique_handle<cudaGraph_t, cudaGraphDestroy>;

  cudaError_t end(cudaGraph_t* made) noexcept {
    is_open_ = false;
    return cudaStreamEndCapture(origin_, made);
  }

  stream_ref origin_;
  bool is_open_ = true;
};

}  // namespace zbpp::cuda::detail
