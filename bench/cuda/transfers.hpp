// SPDX-License-Identifier: Apache-2.0
//
// What messages between the parts of one GPU take, by their size: while nothing else runs, and
// while the other parts compute.
#pragma once

#include <zbpp/cuda/partition.hpp>

#include <bench/cuda/measuring.hpp>
#include <bench/cuda/report.hpp>
#include <bench/cuda/work.hpp>
#include <cstddef>
#include <cstdint>
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

/// Measures messages from the first part of four to the last.
inline void measure_transfers(report& into, bool is_short) {
  table& result = into.begin(
      "Messages from part to part of one GPU, from the end of a pass to the start of the next",
      {"bytes", "nothing else runs, us", "that in GB/s", "two parts compute, us", "that in GB/s"});
  constexpr int parts = 4;
  cuda::partition const cut(0, parts);
  auto const devices = cut.devices();
  auto const rate = [](bytes size, double milliseconds) {
    return static_cast<double>(size) / milliseconds * 1e-6;
  };
  for (bytes size = 4096; size <= (is_short ? 65536 : bytes{64} << 20); size *= 4) {
    auto const alone = measure_transfer(devices, size);
    double busy = 0;
    {
      company const computes(devices, {1, 2}, is_short ? 2 : 100);
      busy = measure_transfer(devices, size);
    }
    result.add({std::int64_t{size}, 1e3 * alone, rate(size, alone), 1e3 * busy, rate(size, busy)});
    into.save();
  }
}

}  // namespace zbpp::bench
