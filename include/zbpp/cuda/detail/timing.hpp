// SPDX-License-Identifier: Apache-2.0
//
// Measures when the passes of a rank really ran on its GPU, by events around each of them.
#pragma once

#include <zbpp/cuda/handles.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::cuda::detail {

/// @return the time from one event of a device to another, once both are complete
/// @throws cuda_error
[[nodiscard]] inline ticks time_between(event_ref from, event_ref to) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, from.get(), to.get()));
  return std::llround(static_cast<double>(milliseconds) * 1e6);
}

/// Holds the events around the passes of one rank.
class timing {
 public:
  /// Makes the events for up to `passes` per step; 0 when passes are not measured.
  /// @throws cuda_error
  explicit timing(std::size_t passes) {
    for (std::size_t i = 0; i < 2 * passes; ++i) marks_.emplace_back(event_kind::timing);
  }

  /// Starts again.
  void start_step() noexcept { next_ = 0; }
  /// Records the next event, where there is one: at the start of a pass and at its end.
  /// @throws cuda_error
  void mark(stream_ref on) {
    if (next_ < marks_.size()) on.record(marks_[next_++]);
  }
  /// Writes when passes ran, counted from an event of the same device, once all are complete.
  /// @throws cuda_error
  void read(event_ref epoch, std::span<timed_pass> passes) const {
    // CUDA gives floats, which are coarse long after the epoch; so passes count from the first.
    auto const first = next_ == 0 ? 0 : time_between(epoch, marks_.front());
    for (std::size_t i = 0; i < passes.size() && 2 * i + 1 < next_; ++i) {
      passes[i].start = first + time_between(marks_.front(), marks_[2 * i]);
      passes[i].end = first + time_between(marks_.front(), marks_[2 * i + 1]);
      if (!passes[i].pass.is_paired) continue;
      // Either may begin first, and end last; a timeline has the times of both.
      auto& before = passes[i - 1];
      passes[i].start = before.start = std::min(before.start, passes[i].start);
      passes[i].end = before.end = std::max(before.end, passes[i].end);
    }
  }

 private:
  std::vector<event> marks_;
  std::size_t next_ = 0;
};

}  // namespace zbpp::cuda::detail
