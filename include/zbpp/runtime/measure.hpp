// SPDX-License-Identifier: Apache-2.0
//
// From steps of a pipeline to the problem to plan for, in one call.
#pragma once

#include <zbpp/analysis/costs_from.hpp>
#include <zbpp/analysis/message_times.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/step_result.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

/// Chooses which steps are measured, and what their messages count as.
struct measure_options {
  int first_steps = 3;                ///< not measured, at least 1: they meet cold caches
  std::chrono::milliseconds load{0};  ///< steps go on at least so long before any is measured
  int steps = 25;                     ///< to measure, at least 1
  /// Of the times of messages that ranks waited for, the share that the time of a message is above.
  /// The least of them are right for threads and processes on CPUs: the rest is largely the wait of
  /// a woken thread for a core. Use 0.5, the median, for GPUs.
  double message_quantile = 0.02;
  bool has_separate_clocks = false;  ///< whether ranks count time each for itself, as GPUs do
};

namespace detail {

/// Runs and measures steps as the options say.
/// @param agree  makes of the number of steps that this process wants that of all processes
/// @param whole  makes of the measured passes of this process those of all ranks, on one clock
template <class Pipeline, class Agree, class Whole>
[[nodiscard]] problem measure_steps(
    Pipeline& pipe, measure_options const& options, Agree const& agree, Whole const& whole) {
  require(
      options.first_steps >= 1, "measure: there is at least 1 first step, which is not measured");
  require(options.steps >= 1, "measure: at least 1 step is measured");
  require(options.load.count() >= 0, "measure: the time of load is not negative");
  using clock = std::chrono::steady_clock;
  static_cast<void>(pipe.step());
  auto const start = clock::now();
  for (int i = 1; i < options.first_steps; ++i) static_cast<void>(pipe.step());
  if (options.load.count() > 0) {
    if (options.first_steps == 1) static_cast<void>(pipe.step());
    std::chrono::duration<double> const passed =
        std::max<clock::duration>(clock::now() - start, std::chrono::microseconds(1));
    auto const took = passed / std::max(options.first_steps - 1, 1);
    std::chrono::duration<double> const load = options.load;
    auto const more = agree(static_cast<std::int64_t>(std::ceil(load / took)));
    for (std::int64_t i = 0; i < more; ++i) static_cast<void>(pipe.step());
  }
  std::vector<timeline> steps;
  for (int i = 0; i < options.steps; ++i) steps.push_back(pipe.step().measured);
  for (auto& step : steps) step = whole(step);
  return costs_and_messages_from(steps, pipe.planned().problem(), options.message_quantile);
}

}  // namespace detail

/// Gives the problem of a pipeline's plan with the times of measured steps: medians of its passes,
/// and the time of a message. All ranks run in this process; with ranks in several processes use
/// the form that takes their rendezvous (asio/measure.hpp).
///
/// Plan with B and W apart (`split_backward`), for a BW says nothing of its halves. The stages are
/// trained meanwhile; throw them away, or restore them from a checkpoint.
/// @throws error as `pipeline::step` and `costs_from`; (bad_argument) for options out of range, or
///         when not all ranks run in this process
template <class Pipeline>
[[nodiscard]] problem measure(Pipeline& pipe, measure_options const& options = {}) {
  auto const same = [](std::int64_t steps) { return steps; };
  return detail::measure_steps(pipe, options, same, [&](timeline line) {
    for (int rank = 0; rank < line.ranks(); ++rank)
      detail::require(
          !line[rank].empty(),
          "measure: not all ranks run in this process; give the rendezvous of the processes, too");
    if (options.has_separate_clocks) align_clocks(line, pipe.planned().problem().placement());
    return line;
  });
}

/// As `costs_from` of timelines, for results that were kept of several steps.
/// @throws error (bad_argument) as `costs_from` of timelines
[[nodiscard]] inline problem costs_from(std::span<step_result const> steps, problem const& stated) {
  std::vector<timeline> lines;
  for (auto const& step : steps) lines.push_back(step.measured);
  return costs_from(std::span<timeline const>(lines), stated);
}

/// As `costs_from` of timelines, for one step.
/// @throws error (bad_argument) as `costs_from` of timelines
[[nodiscard]] inline problem costs_from(step_result const& step, problem const& stated) {
  return costs_from(std::span<timeline const>(&step.measured, 1), stated);
}

}  // namespace zbpp
