// SPDX-License-Identifier: Apache-2.0
//
// Compares synchronous steps with steps that are validated afterwards.
#pragma once

#include "median.hpp"
#include <zbpp/analysis/steps.hpp>
#include <zbpp/model/costs.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <vector>

namespace zbpp::bench {

/// Runs two pipelines in turn, and reports medians beside what `simulate_steps` says.
/// @param count  steps of a turn
template <class Pipeline>
void compare_steps(benchmark::State& state, Pipeline& synchronous, Pipeline& late, int count) {
  auto const milliseconds = [&](Pipeline& pipe) {
    auto const start = std::chrono::steady_clock::now();
    pipe.run(count);
    std::chrono::duration<double, std::milli> const took = std::chrono::steady_clock::now() - start;
    return took.count() / count;
  };
  auto const said = [&](Pipeline const& pipe) {
    auto const& of = pipe.planned();
    return to_milliseconds(simulate_steps(of.program(), of.problem(), count).end) / count;
  };
  std::vector<double> synchronous_times;
  std::vector<double> late_times;
  for (auto _ : state) {
    synchronous_times.push_back(milliseconds(synchronous));
    late_times.push_back(milliseconds(late));
    state.SetIterationTime(1e-3 * count * (late_times.back() + synchronous_times.back()));
  }
  auto const synchronous_ms = median(synchronous_times);
  auto const late_ms = median(late_times);
  state.counters["synchronous_ms"] = synchronous_ms;
  state.counters["post_validated_ms"] = late_ms;
  state.counters["gain_percent"] = 100 * (synchronous_ms / late_ms - 1);
  state.counters["gain_said_percent"] = 100 * (said(synchronous) / said(late) - 1);
}

}  // namespace zbpp::bench
