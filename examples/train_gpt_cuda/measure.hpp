// SPDX-License-Identifier: Apache-2.0
//
// Measures how long the passes of each stage take, alone and with all ranks busy: partitions share
// memory bandwidth, caches and power, so that the second is what a pipeline meets.
#pragma once

#include "stages.hpp"
#include "train_gpt/table.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <list>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Holds how long F, B and W of a stage take.
using pass_times = std::array<zbpp::ticks, 3>;

/// Holds what was measured, by stage.
struct measured_times {
  std::vector<pass_times> alone;
  std::vector<pass_times> together;
};

/// Times the passes of one stage on the stream of its rank.
class stage_clock {
 public:
  /// Own choice: enough for a median; the first rounds find cold caches and low clocks.
  static constexpr int unmeasured_rounds = 3;
  static constexpr int rounds = 15;

  stage_clock(
      chunk_stage& stage, training const& how, text const& on, zbpp::cuda::rank_device const& at)
      : at_(at), passes_(make(stage, how, on, at)) {
    zbpp::cuda::device_guard const here(at.device);
    for (int i = 0; i < 4 * rounds; ++i) marks_.emplace_back(zbpp::cuda::event_kind::timing);
  }

  /// Enqueues a round of F, B, W.
  /// @param number  from 0; the first ones are not timed
  void enqueue(int number) {
    zbpp::cuda::device_guard const here(at_.device);
    zbpp::cuda::stream_ref const stream(at_.compute);
    int next = 4 * (number - unmeasured_rounds);
    auto const mark = [&] {
      if (next >= 0) stream.record(marks_[static_cast<std::size_t>(next)]);
      ++next;
    };
    mark();
    passes_.forward();
    mark();
    passes_.backward_input();
    mark();
    passes_.backward_weight();
    mark();
  }
  /// Waits for all rounds.
  /// @return the medians
  [[nodiscard]] pass_times read() {
    zbpp::cuda::device_guard const here(at_.device);
    zbpp::cuda::stream_ref(at_.compute).synchronize();
    pass_times medians{};
    for (std::size_t pass = 0; pass < medians.size(); ++pass) {
      std::vector<float> took;
      for (std::size_t first = pass; first < marks_.size(); first += 4) {
        float milliseconds = 0.0F;
        zbpp::cuda::check(cudaEventElapsedTime(
            &milliseconds, marks_[first].view().get(), marks_[first + 1].view().get()));
        took.push_back(milliseconds);
      }
      std::nth_element(took.begin(), took.begin() + rounds / 2, took.end());
      auto const nanoseconds = static_cast<double>(took[rounds / 2]) * 1e6;
      medians[pass] = std::max<zbpp::ticks>(1, static_cast<zbpp::ticks>(nanoseconds));
    }
    return medians;
  }

 private:
  static rehearsal make(
      chunk_stage& stage, training const& how, text const& on, zbpp::cuda::rank_device const& at) {
    zbpp::cuda::device_guard const here(at.device);
    get_ready(stage.model(), how.model, on, at.compute, at.sm_count);
    return rehearsal(stage.model(), how.model, on, at.compute);
  }

  zbpp::cuda::rank_device at_;
  rehearsal passes_;
  std::vector<zbpp::cuda::event> marks_;
};

/// Measures stages, which it gets ready for their devices.
/// @param devices  one per stage, each with a stream
/// @throws zbpp::error (device_failed)
[[nodiscard]] inline measured_times measure(
    training const& how,
    text const& on,
    std::vector<chunk_stage> stages,
    std::span<zbpp::cuda::rank_device const> devices) {
  std::list<stage_clock> clocks;
  for (std::size_t s = 0; s < stages.size(); ++s)
    clocks.emplace_back(stages[s], how, on, devices[s]);
  constexpr int all = stage_clock::unmeasured_rounds + stage_clock::rounds;
  measured_times times;
  for (auto& clock : clocks) {
    for (int i = 0; i < all; ++i) clock.enqueue(i);
    times.alone.push_back(clock.read());
  }
  for (int i = 0; i < all; ++i)
    for (auto& clock : clocks) clock.enqueue(i);
  for (auto& clock : clocks) times.together.push_back(clock.read());
  return times;
}

/// Sets the times of costs.
inline void set_times(std::vector<zbpp::stage_costs>& costs, std::vector<pass_times> const& times) {
  for (std::size_t s = 0; s < costs.size(); ++s) {
    costs[s].forward = times[s][0];
    costs[s].backward_input = times[s][1];
    costs[s].backward_weight = times[s][2];
  }
}

/// Tells what was measured.
[[nodiscard]] inline std::string describe(
    measured_times const& times, zbpp::placement const& placement) {
  table lines({"stage", "rank", "F ms", "B ms", "W ms", "F alone", "B alone", "W alone"});
  for (int s = 0; s < placement.stages(); ++s) {
    std::vector<std::string> cells{std::to_string(s), std::to_string(placement.rank_of(s))};
    for (auto const* const of : {&times.together, &times.alone})
      for (auto const time : (*of)[static_cast<std::size_t>(s)])
        cells.push_back(fixed(zbpp::to_milliseconds(time), 3));
    lines.add(std::move(cells));
  }
  return "measured with all ranks busy, and alone; " + placement.name() + " placement\n" +
         lines.text();
}

}  // namespace gpt::cuda
