// SPDX-License-Identifier: Apache-2.0
//
// Lets copies between the GPUs of a process go directly where they arrive that way; elsewhere CUDA
// copies by way of the host.
#pragma once

#include <zbpp/cuda/detail/copy_trial.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/error.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <utility>

namespace zbpp::cuda::detail {

/// @return whether what is copied from one device to another arrives, as it is copied now; blocks
/// @throws cuda_error
[[nodiscard]] inline bool arrives(int from, int to) {
  copy_pattern const pattern;
  auto const sent = on_device(from, [&] {
    device_array<std::byte> made(trial_size);
    stream const on(stream_priority::usual);
    run_to_end(on, [&] { pattern.write(made.data(), on); });
    return made;
  });
  device_guard const there(to);
  device_array<std::byte> const received(trial_size);
  stream const on(stream_priority::usual);
  run_to_end(on, [&] {
    check(cudaMemcpyPeerAsync(received.data(), to, sent.data(), from, trial_size, on.view()));
  });
  return pattern.is_in(received.data(), on);
}

/// Opens the direct way between pairs of devices.
class peer_access {
 public:
  /// @param on_fallback  gets a line for each pair whose copies take another way; may be empty
  explicit peer_access(std::function<void(std::string const&)> on_fallback)
      : on_fallback_(std::move(on_fallback)) {}

  /// Lets copies between two devices go directly, if CUDA opens that way and they arrive; tries
  /// each pair once.
  /// @throws error (device_failed) when they do not arrive by way of the host either; cuda_error
  void open(int a, int b) {
    if (a == b || !opened_.insert(std::minmax(a, b)).second) return;
    bool const there = enable(a, b);
    bool const back = enable(b, a);
    if (arrive_both_ways(a, b)) return;
    // Another part of the program may need what it has enabled itself.
    if (there) disable(a, b);
    if (back) disable(b, a);
    std::string const devices = zbpp::detail::joined(a, " and ", b);
    if (!arrive_both_ways(a, b))
      throw error(errc::device_failed) + "copies between devices " + devices +
          " do not arrive as they were sent, though CUDA reports success; an IOMMU does that "
          "on bare metal, so turn it off, or leave out what else enables peer access between "
          "the two";
    tell(
        "copies between devices " + devices +
        " go by way of the host, since directly they do not arrive as they were sent, though CUDA "
        "reports success; an IOMMU does that on bare metal, so turn it off");
  }

 private:
  [[nodiscard]] static bool arrive_both_ways(int a, int b) {
    return arrives(a, b) && arrives(b, a);
  }

  // @return whether this call has let one device access the memory of another
  [[nodiscard]] bool enable(int device, int other) {
    int can = 0;
    check(cudaDeviceCanAccessPeer(&can, device, other));
    if (can == 0) return false;
    device_guard const here(device);
    auto const status = cudaDeviceEnablePeerAccess(other, 0);
    if (status == cudaSuccess) return true;
    cudaGetLastError();  // if CUDA cannot go on, its next call says so
    if (status != cudaErrorPeerAccessAlreadyEnabled)
      tell(
          zbpp::detail::joined("device ") + device + " gets no direct access to device " + other +
          ", for CUDA reports " + cudaGetErrorName(status) +
          ", so copies between the two may go by way of the host");
    return false;
  }
  static void disable(int device, int other) {
    device_guard const here(device);
    check(cudaDeviceDisablePeerAccess(other));
  }
  void tell(std::string const& line) const {
    if (on_fallback_) on_fallback_(line);
  }

  std::function<void(std::string const&)> on_fallback_;
  std::set<std::pair<int, int>> opened_;
};

}  // namespace zbpp::cuda::detail
