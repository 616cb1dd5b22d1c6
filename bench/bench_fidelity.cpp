// SPDX-License-Identifier: Apache-2.0
//
// How much of its plan a run on threads loses: passes only wait, as they would for a GPU, and
// messages arrive as late as the problem says. Reports measured cost over simulated cost, and how
// much longer than asked the passes themselves took: timers are late, and that share is not the
// engine's.
#include "waiting.hpp"
#include <zbpp/planner/registry.hpp>
#include <zbpp/zbpp.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

namespace {

using zbpp::bench::waiting_stage;

void fidelity(
    benchmark::State& state, zbpp::any_policy const& decide, zbpp::placement const& placement) {
  auto const share = placement.stages() / placement.ranks();  // of a rank's work that one stage is
  auto const pass = zbpp::from_milliseconds(5) / share;
  zbpp::stage_costs const costs{.forward = pass, .backward_input = pass, .backward_weight = pass};
  auto const plan =
      zbpp::make_plan(decide, zbpp::problem(placement, 32, costs, zbpp::from_milliseconds(0.2)));
  std::vector<waiting_stage> stages(
      static_cast<std::size_t>(placement.stages()), waiting_stage{costs});
  zbpp::pipeline pipe{plan, zbpp::threads{.emulates_transfers = true}, stages};
  pipe.step();
  auto const simulated = zbpp::cost(plan.timeline());
  std::vector<double> ratios;
  std::vector<double> lateness;
  for (auto _ : state) {
    auto const& line = pipe.step().measured;
    auto const measured = zbpp::cost(line);
    lateness.push_back(
        static_cast<double>(zbpp::busy(line, 0)) /
        static_cast<double>(zbpp::busy(plan.timeline(), 0)));
    state.SetIterationTime(1e-9 * static_cast<double>(measured));
    ratios.push_back(static_cast<double>(measured) / static_cast<double>(simulated));
  }
  std::sort(ratios.begin(), ratios.end());
  std::sort(lateness.begin(), lateness.end());
  state.counters["simulated_ms"] = zbpp::to_milliseconds(simulated);
  state.counters["measured_over_simulated"] = ratios[ratios.size() / 2];
  state.counters["passes_over_nominal"] = lateness[lateness.size() / 2];
  state.counters["worst"] = ratios.back();
}

auto const linear = zbpp::placement::linear(8);

}  // namespace

#define ZBPP_FIDELITY(policy, where)                                                               \
  BENCHMARK_CAPTURE(fidelity, policy, zbpp::policy{}, where)                                       \
      ->UseManualTime()                                                                            \
      ->Unit(benchmark::kMillisecond)                                                              \
      ->Iterations(5)
ZBPP_FIDELITY(one_f_one_b, linear);
ZBPP_FIDELITY(zb_h1, linear);
ZBPP_FIDELITY(zb_h2, linear);
ZBPP_FIDELITY(interleaved, zbpp::placement::looped(8, 2));
ZBPP_FIDELITY(zb_v, zbpp::placement::v_shape(8));
