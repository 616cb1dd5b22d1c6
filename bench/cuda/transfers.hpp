// SPDX-License-Identifier: Apache-2.0
//
// What messages between the parts of one GPU take, which are handed over whatever their size: while
// nothing else runs, and while the other parts compute. And what copies to other GPUs take.
#pragma once

#include <zbpp/cuda/detail/peer_access.hpp>
#include <zbpp/cuda/handles.hpp>

#include <bench/cuda/measuring.hpp>
#include <bench/cuda/report.hpp>
#include <bench/cuda/work.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
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

/// Measures copies from the first device to each other one, as messages between GPUs of a process
/// go: directly where that is possible.
inline void measure_peer_copies(report& into, int devices, bool is_short) {
  if (devices < 2) return;
  table& result = into.begin(
      "A copy from device 0 to another one", {"device", "way", "256 bytes, us", "large, GB/s"});
  auto const large = std::size_t{1} << (is_short ? 16 : 28);
  for (int to = 1; to < devices; ++to) {
    std::string way = "direct, if CUDA can";
    cuda::detail::peer_access access([&way](std::string const& line) { way = line; });
    access.open(0, to);
    device_memory const from(large);
    cuda::device_guard const there(to);
    device_memory const received(large);
    cuda::stream const on(cuda::stream_priority::highest);
    cuda::event const begin(cuda::event_kind::timing);
    cuda::event const end(cuda::event_kind::timing);
    // One of many in a row, in milliseconds.
    auto const time_of = [&](std::size_t size) {
      constexpr int copies = 20;
      hold_up(on.view());
      for (int i = 0; i <= copies; ++i) {
        if (i == 1) on.view().record(begin);  // the first one warms up
        cuda::check(cudaMemcpyPeerAsync(received.get(), to, from.get(), 0, size, on.view().get()));
      }
      on.view().record(end);
      on.view().synchronize();
      return between(begin, end) / copies;
    };
    auto const small = time_of(256);
    result.add(
        {std::int64_t{to}, way, 1e3 * small, static_cast<double>(large) / time_of(large) * 1e-6});
    into.save();
  }
}

}  // namespace zbpp::bench
