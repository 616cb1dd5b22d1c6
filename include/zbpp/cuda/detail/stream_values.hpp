// SPDX-License-Identifier: Apache-2.0
//
// Orders streams by counters in memory of the host, as events order those of one process: a stream
// writes how far it is, and one of another process waits until that is far enough.
#pragma once

#include <zbpp/cuda/detail/driver_api.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/handles.hpp>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace zbpp::cuda::detail {

/// Enqueues writes of counters and waits for them, on streams of one device. A write comes after
/// all that its stream did before, as every device and host of the system sees it.
class stream_values {
 public:
  /// @throws error (device_failed) when the driver is older than CUDA 11.7; cuda_error
  explicit stream_values(int device)
      : write_(driver_function<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32", 11070)),
        wait_(driver_function<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32", 11070)) {
    int can_flush = 0;
    check(cudaDeviceGetAttribute(&can_flush, cudaDevAttrCanFlushRemoteWrites, device));
    // What another device has written before the counter may still be on its way within this one.
    if (can_flush != 0) flags_ |= CU_STREAM_WAIT_VALUE_FLUSH;
  }

  /// Writes a counter behind all that was enqueued.
  /// @param counter  as devices see it
  /// @throws cuda_error
  void write(stream_ref on, std::uint32_t* counter, std::uint32_t value) const {
    check_driver(write_(on, address_of(counter), value, CU_STREAM_WRITE_VALUE_DEFAULT));
  }
  /// Lets what is enqueued from now on wait until a counter has reached a value; it may wrap
  /// around.
  /// @throws cuda_error
  void wait(stream_ref on, std::uint32_t* counter, std::uint32_t value) const {
    check_driver(wait_(on, address_of(counter), value, flags_));
  }

 private:
  [[nodiscard]] static CUdeviceptr address_of(std::uint32_t* counter) noexcept {
    return reinterpret_cast<CUdeviceptr>(counter);
  }

  PFN_cuStreamWriteValue32_v11070 write_;
  PFN_cuStreamWaitValue32_v11070 wait_;
  unsigned flags_ = CU_STREAM_WAIT_VALUE_GEQ;
};

}  // namespace zbpp::cuda::detail
