// SPDX-License-Identifier: Apache-2.0
//
// Turns what CUDA reports into an exception that says which call failed and keeps CUDA's own code.
#pragma once

#include <zbpp/error.hpp>

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>
#include <string_view>

namespace zbpp::cuda {

/// Reports that a call of CUDA failed.
class cuda_error : public error {
 public:
  cuda_error(cudaError_t native, std::string const& text)
      : error(errc::device_failed, text), native_(native) {}
  [[nodiscard]] cudaError_t native() const noexcept { return native_; }

 private:
  cudaError_t native_;
};

/// Does nothing for success, else clears CUDA's last error and throws.
///
/// Kernels run later than they are launched, so the call that reports a fault may not be the one at
/// fault; `device::synchronizes` finds the pass.
/// @throws cuda_error (device_failed)
inline void check(cudaError_t status, std::source_location at = std::source_location::current());

/// @return a source location as `graph.hpp:120`; for backends that report errors alike
[[nodiscard]] inline std::string to_string(std::source_location const& at) {
  std::string_view file = at.file_name();
  file.remove_prefix(file.find_last_of('/') + 1);
  return zbpp::detail::joined(file, ":", at.line());
}

namespace detail {

[[noreturn]] inline void raise(cudaError_t status, std::source_location const& at) {
  cudaGetLastError();  // so that the next check does not find it again
  auto const is_of_capture =
      status >= cudaErrorStreamCaptureUnsupported && status <= cudaErrorStreamCaptureWrongThread;
  throw cuda_error(
      status,
      zbpp::detail::joined("CUDA reports ") + cudaGetErrorName(status) + " (" +
          static_cast<int>(status) + ") at " + to_string(at) + ": " + cudaGetErrorString(status) +
          (is_of_capture ? "; what a graph captures must not wait for the device, nor make or free "
                           "device memory, and streams that it uses besides must be joined"
                         : ""));
}

}  // namespace detail

inline void check(cudaError_t status, std::source_location at) {
  if (status != cudaSuccess) detail::raise(status, at);
}

}  // namespace zbpp::cuda
