// SPDX-License-Identifier: Apache-2.0
//
// Where ranks are: parts of one GPU, or a GPU each; with the stream that each computes on, so
// that what runs beside the pipeline, as the reference, can run in the same place.
#pragma once

#include <zbpp/cuda/partition.hpp>
#include <zbpp/cuda/site.hpp>

#include <optional>
#include <span>
#include <vector>

namespace gpt::cuda {

/// Owns the streams of the ranks of this process.
class rank_sites {
 public:
  /// @param one_device_each  else ranks share the current device, in equal parts
  /// @throws zbpp::error when there are too few devices or multiprocessors, or (device_failed)
  rank_sites(int ranks, bool one_device_each) {
    int current = 0;
    zbpp::cuda::check(cudaGetDevice(&current));
    if (!one_device_each && ranks > 1) {
      parts_.emplace(current, ranks);
      sites_ = parts_->sites();
      return;
    }
    sites_ = zbpp::cuda::one_device_a_rank(ranks);
    if (!one_device_each) sites_.front().device = current;
    own_streams();
  }
  /// Gives the rank of a process all of a device.
  /// @throws zbpp::error (device_failed)
  explicit rank_sites(zbpp::cuda::site const& only) : sites_{only} { own_streams(); }

  /// @return one a rank, each with a stream
  [[nodiscard]] std::span<zbpp::cuda::site const> all() const { return sites_; }

 private:
  void own_streams() {
    for (auto& site : sites_) {
      zbpp::cuda::device_guard const here(site.device);
      streams_.emplace_back(zbpp::cuda::stream_priority::usual);
      site.compute = streams_.back().get();
      zbpp::cuda::check(
          cudaDeviceGetAttribute(&site.sm_count, cudaDevAttrMultiProcessorCount, site.device));
    }
  }

  std::optional<zbpp::cuda::partition> parts_;
  std::vector<zbpp::cuda::stream> streams_;
  std::vector<zbpp::cuda::site> sites_;
};

}  // namespace gpt::cuda
