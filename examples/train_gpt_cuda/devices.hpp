// SPDX-License-Identifier: Apache-2.0
//
// Where ranks are: parts of one GPU, or a GPU each; with the stream that each computes on, so
// that what runs beside the pipeline, as the reference, can run in the same place.
#pragma once

#include <zbpp/cuda/partition.hpp>
#include <zbpp/cuda/rank_device.hpp>

#include <optional>
#include <span>
#include <vector>

namespace gpt::cuda {

/// Owns the streams of the ranks of this process.
class rank_devices {
 public:
  /// @param one_device_each  else ranks share the current device, in equal parts
  /// @throws zbpp::error when there are too few devices or multiprocessors, or (device_failed)
  rank_devices(int ranks, bool one_device_each) {
    int current = 0;
    zbpp::cuda::check(cudaGetDevice(&current));
    if (!one_device_each && ranks > 1) {
      parts_.emplace(current, ranks);
      devices_ = parts_->devices();
      return;
    }
    devices_ = zbpp::cuda::one_device_per_rank(ranks);
    if (!one_device_each) devices_.front().device = current;
    own_streams();
  }
  /// Gives the rank of a process all of a device.
  /// @throws zbpp::error (device_failed)
  explicit rank_devices(zbpp::cuda::rank_device const& only) : devices_{only} { own_streams(); }

  /// @return one per rank, each with a stream
  [[nodiscard]] std::span<zbpp::cuda::rank_device const> all() const { return devices_; }

 private:
  void own_streams() {
    for (auto& device : devices_) {
      zbpp::cuda::device_guard const here(device.device);
      streams_.emplace_back(zbpp::cuda::stream_priority::usual);
      device.compute = streams_.back().view();
      zbpp::cuda::check(
          cudaDeviceGetAttribute(&device.sm_count, cudaDevAttrMultiProcessorCount, device.device));
    }
  }

  std::optional<zbpp::cuda::partition> parts_;
  std::vector<zbpp::cuda::stream> streams_;
  std::vector<zbpp::cuda::rank_device> devices_;
};

}  // namespace gpt::cuda
