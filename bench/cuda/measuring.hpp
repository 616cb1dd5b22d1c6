// SPDX-License-Identifier: Apache-2.0
//
// What passes and messages take on the parts of a GPU, alone and while all parts are busy, and a
// problem made of it.
#pragma once

#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/partition.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>

#include <algorithm>
#include <array>
#include <bench/cuda/work.hpp>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

namespace zbpp::bench {

/// Gives ranks the first GPU: each a part of it, or all of it on a stream of its own.
class shared_gpu {
 public:
  /// @param is_whole  whether they share all of it
  /// @throws error (bad_argument) when it makes fewer parts; (device_failed)
  shared_gpu(int ranks, bool is_whole) {
    if (!is_whole) {
      cut(ranks);
      return;
    }
    int multiprocessors = 0;
    cuda::check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    for (int r = 0; r < ranks; ++r)
      devices_.push_back(
          {.device = 0,
           .compute = streams_.emplace_back(cuda::stream_priority::usual).view(),
           .sm_count = multiprocessors});
  }

  /// @return one per rank
  [[nodiscard]] std::vector<cuda::rank_device> const& devices() const { return devices_; }

 private:
  void cut(int parts) try {
    parts_.emplace(0, parts);
    devices_ = parts_->devices();
  } catch (error const& cannot) {
    throw error(cannot.code(), std::string(cannot.what()) + "; --whole-gpu goes on without parts");
  }

  std::optional<cuda::partition> parts_;
  std::vector<cuda::stream> streams_;
  std::vector<cuda::rank_device> devices_;
};

inline constexpr std::array kinds{
    pass_kind::forward, pass_kind::backward_input, pass_kind::backward_weight};

[[nodiscard]] inline double median(std::vector<double> of) {
  auto const middle = of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2);
  std::nth_element(of.begin(), middle, of.end());
  return *middle;
}

/// @return what the calling thread has computed so far, in seconds; waiting does not count
[[nodiscard]] inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// @return the time by a clock that never goes back, in seconds
[[nodiscard]] inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// @return milliseconds between two complete events
[[nodiscard]] inline double between(cuda::event_ref first, cuda::event_ref second) {
  float milliseconds = 0;
  cuda::check(cudaEventElapsedTime(&milliseconds, first.get(), second.get()));
  return static_cast<double>(milliseconds);
}

/// Holds milliseconds of F, B and W.
using pass_times = std::array<double, 3>;

/// Measures the passes of some ranks while these, and only these, are busy. The kinds of pass take
/// turns, and ranks are not at the same kind, as in a pipeline.
/// @return medians, in the order of the ranks
[[nodiscard]] inline std::vector<pass_times> measure(
    std::vector<cuda::rank_device> const& devices,
    work const& does,
    std::vector<int> const& ranks) {
  constexpr std::size_t warm = 6;
  constexpr std::size_t counted = 30;
  constexpr std::size_t all = warm + counted + warm;  // the last ones keep the others company
  std::vector<std::vector<cuda::event>> marks(ranks.size());
  for (auto& row : marks)
    for (std::size_t i = 0; i <= all; ++i) row.emplace_back(cuda::event_kind::timing);
  auto const kind_of = [](std::size_t position, std::size_t i) { return (position + i) % 3; };
  for (std::size_t i = 0; i <= all; ++i) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      cuda::stream_ref const on = devices[zbpp::detail::index(ranks[r])].compute;
      on.record(marks[r][i]);
      if (i < all) does(on, ranks[r], kinds[kind_of(r, i)]);
    }
  }
  std::vector<pass_times> result(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    cuda::stream_ref(devices[zbpp::detail::index(ranks[r])].compute).synchronize();
    std::array<std::vector<double>, 3> times;
    for (std::size_t i = warm; i < warm + counted; ++i)
      times[kind_of(r, i)].push_back(between(marks[r][i], marks[r][i + 1]));
    for (std::size_t k = 0; k < 3; ++k) result[r][k] = median(times[k]);
  }
  return result;
}

/// Keeps a stream busy for about as long as a thread takes for 400,000 dependent multiplications,
/// some milliseconds: what the host enqueues meanwhile then runs without a wait for the host.
inline void hold_up(cuda::stream_ref on) { cuda::check(burn(on, 1, 400'000, nullptr)); }

/// @return milliseconds from the end of a pass until a pass of another part can start that waits
///         for its message, which is handed over
[[nodiscard]] inline double measure_transfer(std::vector<cuda::rank_device> const& devices) {
  constexpr int hops = 100;  // even, so that the last one ends where the first began
  cuda::event const made(cuda::event_kind::order);
  cuda::event const start(cuda::event_kind::timing);
  cuda::event const end(cuda::event_kind::timing);
  cuda::stream_ref const first = devices.front().compute;
  cuda::stream_ref const second = devices.back().compute;
  hold_up(first);
  first.record(start);
  for (int i = 0; i < hops; ++i) {
    (i % 2 == 0 ? first : second).record(made);
    (i % 2 == 0 ? second : first).wait(made);
  }
  first.record(end);
  first.synchronize();
  return between(start, end) / hops;
}

/// Makes the problem of stages that all do the same work: `share` of a rank's each.
[[nodiscard]] inline problem problem_of(
    placement const& placement,
    int microbatches,
    std::vector<pass_times> const& by_rank,
    double transfer,
    bytes edge) {
  std::vector<stage_costs> costs;
  for (int s = 0; s < placement.stages(); ++s) {
    auto const& times = by_rank[zbpp::detail::index(placement.rank_of(s))];
    costs.push_back(
        {.forward = from_milliseconds(times[0]),
         .backward_input = from_milliseconds(times[1]),
         .backward_weight = from_milliseconds(times[2]),
         .activation = edge,
         .weight_gradient_input = edge,
         .edge = edge});
  }
  return {placement, microbatches, std::move(costs), from_milliseconds(transfer)};
}

}  // namespace zbpp::bench
