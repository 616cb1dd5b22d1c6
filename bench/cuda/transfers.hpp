// SPDX-License-Identifier: Apache-2.0
//
// What messages between the parts of one GPU take, which are handed over whatever their size: while
// nothing else runs, and while the other parts compute.
#pragma once

#include <zbpp/cuda/partition.hpp>

#include <bench/cuda/measuring.hpp>
#include <bench/cuda/report.hpp>
#include <bench/cuda/work.hpp>
#include <utility>
#include <vector>

namespace zbpp::bench {

/// Keeps some parts of a GPU busy for a while, and waits for that at the end.
class company {
 public:
  /// @param kernels  how many of about a millisecond each part gets
  company(std::vector<cuda::rank_device> const& devices, std::vector<int> ranks, int kernels)
      : devices_(&devices), ranks_(std::move(ranks)), does_(arithmetic(devices, 20'000, kernels)) {
    for (int const rank : ranks_) does_(stream_of(rank), rank, pass_kind::forward);
  }
  company(company const&) = delete;
  company& operator=(company const&) = delete;
  ~company() {
    for (int const rank : ranks_) cudaStreamSynchronize(stream_of(rank));
  }

 private:
  [[nodiscard]] cuda::stream_ref stream_of(int rank) const {
    return (*devices_)[zbpp::detail::index(rank)].compute;
  }

  std::vector<cuda::rank_device> const* devices_;
  std::vector<int> ranks_;
  work does_;
};

/// Measures messages from the first rank of four to the last.
/// @param whole_gpu  whether ranks share all of a GPU, and not parts of it
inline void measure_transfers(report& into, bool is_short, bool whole_gpu) {
  table& result = into.begin(
      "A message from " + std::string(whole_gpu ? "rank to rank" : "part to part") +
          " of one GPU, from the end of a pass to the start of the next",
      {"nothing else runs, us", "two parts compute, us"});
  shared_gpu const gpu(4, whole_gpu);
  auto const& devices = gpu.devices();
  auto const alone = measure_transfer(devices);
  company const computes(devices, {1, 2}, is_short ? 2 : 100);
  auto const busy = measure_transfer(devices);
  result.add({1e3 * alone, 1e3 * busy});
  into.save();
}

}  // namespace zbpp::bench
