// SPDX-License-Identifier: Apache-2.0
//
// Measures what a pipeline meets: steps on real text under a plan of the policy, timed on the
// device. Zeros would be quicker than text, as they take less power; and a GPU with nothing else
// to do is quicker than one whose ranks share its bandwidth, caches and power.
#pragma once

#include "stages.hpp"
#include "train_gpt/measured_steps.hpp"
#include "train_gpt/table.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace gpt::cuda {

#ifdef ZBPP_CUDA_MODEL
/// The model does not get warm, and is always as quick.
inline constexpr std::chrono::milliseconds load_before_measuring{0};
inline constexpr int steps_to_measure = 3;
#else
/// Own choice: clocks fall under load, for about this long.
inline constexpr std::chrono::milliseconds load_before_measuring{2000};
/// Own choice: enough for medians over all microbatches.
inline constexpr int steps_to_measure = 9;
#endif

/// Runs steps of a pipeline that times its passes: first as many as load the devices long enough.
/// @param agree  makes of the number of steps that this process wants that of all ranks
/// @param whole  makes of the timeline of a step that of all ranks
/// @return the timelines of the steps after those
/// @throws zbpp::error, the failure of the run
template <class Pipeline, class Agree, class Whole>
[[nodiscard]] std::vector<zbpp::timeline> measured_steps(
    Pipeline& pipe, Agree const& agree, Whole const& whole) {
  constexpr int first_steps = 3;  // own choice: they find cold caches
  using clock = std::chrono::steady_clock;
  static_cast<void>(pipe.step());
  auto const start = clock::now();
  for (int i = 1; i < first_steps; ++i) static_cast<void>(pipe.step());
  std::chrono::duration<double> const load = load_before_measuring;
  auto const elapsed =
      std::max<clock::duration>(clock::now() - start, std::chrono::microseconds(1));
  std::chrono::duration<double> const took = elapsed / (first_steps - 1);
  auto const loading = agree(static_cast<std::int64_t>(std::ceil(load / took)));
  for (std::int64_t i = 0; i < loading; ++i) static_cast<void>(pipe.step());
  std::vector<zbpp::timeline> all;
  for (int i = 0; i < steps_to_measure; ++i) all.push_back(whole(pipe.step().measured));
  return all;
}

/// Makes the plan of the steps that are measured: the order of a policy, with B and W apart.
[[nodiscard]] inline zbpp::plan measuring_plan(
    zbpp::any_policy const& policy, zbpp::problem const& stated, int receive_ahead) {
  return zbpp::make_plan(
      "measuring", split_backward(policy(stated)), stated, {.receive_ahead = receive_ahead});
}

/// Gives the problem of measured steps: medians, of messages too.
[[nodiscard]] inline zbpp::problem measured_problem(
    std::vector<zbpp::timeline> const& steps, zbpp::problem const& stated) {
  return problem_from(steps, stated, 0.5);
}

/// Tells what was measured.
[[nodiscard]] inline std::string describe(zbpp::problem const& measured) {
  auto const milliseconds = [](zbpp::ticks time) { return fixed(zbpp::to_milliseconds(time), 3); };
  auto const& placement = measured.placement();
  table lines({"stage", "rank", "F ms", "B ms", "W ms"});
  for (int s = 0; s < placement.stages(); ++s) {
    auto const& costs = measured.costs(s);
    lines.add(
        {std::to_string(s),
         std::to_string(placement.rank_of(s)),
         milliseconds(costs.forward),
         milliseconds(costs.backward_input),
         milliseconds(costs.backward_weight)});
  }
  return "measured in steps with all ranks busy; " + placement.name() + " placement, messages " +
         milliseconds(message_time(measured)) + " ms\n" + lines.text();
}

}  // namespace gpt::cuda
