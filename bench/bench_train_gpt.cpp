// SPDX-License-Identifier: Apache-2.0
//
// Real training in one run: sequential, 1F1B, ZB-H1 and ZB-V take turns, step by step, so that all
// meet the same noise. Two ranks on threads. Reports the median step and its ratio to the others'.
#include "median.hpp"
#include "planning.hpp"
#include "steps_in_turn.hpp"
#include <zbpp/planner/registry.hpp>
#include <zbpp/zbpp.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace {

// What takes turns: a name for the report, and a step.
struct contender {
  std::string name;
  std::function<void()> step;
  std::vector<double> milliseconds = {};
};

// The first step of a turn is not timed: right after one of a single thread, threads are slower
// until the system has spread them over the cores again.
void take_a_turn(contender& c) {
  for (int i = 0; i < 4; ++i) c.step();
  auto const start = std::chrono::steady_clock::now();
  c.step();
  std::chrono::duration<double, std::milli> const took = std::chrono::steady_clock::now() - start;
  c.milliseconds.push_back(took.count());
}

// Measures the problem of two ranks with the placement of a policy.
zbpp::problem measure(
    gpt::training const& how, gpt::text const& on, zbpp::any_policy const& policy) {
  auto const where = gpt::choose(policy, 2, how.microbatches, how.model).where.value();
  return gpt::measure_on_threads(how, on, where, policy);
}

// A pipeline and the stages it refers to.
struct pipelined {
  pipelined(gpt::training const& how, gpt::text const& on, zbpp::plan const& planned)
      : stages(gpt::make_stages(how, on, planned.problem().placement())),
        pipe(planned, zbpp::threads{}, stages, gpt::options_of(how.optimizer)) {}
  pipelined(gpt::training const& how, gpt::text const& on, zbpp::any_policy const& policy)
      : pipelined(how, on, zbpp::make_plan(policy, measure(how, on, policy))) {}

  std::vector<gpt::chunk_stage> stages;
  zbpp::pipeline<zbpp::threads> pipe;
};

void train_gpt(benchmark::State& state) {
  gpt::training how;
  how.microbatches = static_cast<int>(state.range(0));
  auto const on = gpt::read_repository(GPT_SOURCE_DIR);
  gpt::sequential_trainer trainer(how, on);
  pipelined one_f_one_b(how, on, zbpp::one_f_one_b{});
  pipelined zb_h1(how, on, zbpp::zb_h1{});
  pipelined zb_v(how, on, zbpp::zb_v{});
  std::vector<contender> all{
      {"sequential", [&] { trainer.step(); }},
      {"1F1B", [&] { one_f_one_b.pipe.step(); }},
      {"ZB-H1", [&] { zb_h1.pipe.step(); }},
      {"ZB-V", [&] { zb_v.pipe.step(); }}};
  for (auto _ : state)
    for (auto& c : all) take_a_turn(c);
  std::vector<double> medians;
  for (auto const& c : all) {
    medians.push_back(zbpp::bench::median(c.milliseconds));
    state.counters[c.name + "_ms"] = medians.back();
  }
  state.counters["ZB-H1_over_1F1B"] = medians[2] / medians[1];
  state.counters["ZB-V_over_1F1B"] = medians[3] / medians[1];
  state.counters["ZB-H1_over_sequential"] = medians[2] / medians[0];
  state.counters["ZB-V_over_sequential"] = medians[3] / medians[0];
}

// Runs of both kinds of steps in turn, in which no step is amended.
void steps(benchmark::State& state, zbpp::any_policy const& policy) {
  gpt::training how;
  how.optimizer.needs_norm = true;
  auto const on = gpt::read_repository(GPT_SOURCE_DIR);
  auto const problem = measure(how, on, policy);
  auto const plan = [&](zbpp::step_kind kind) {
    return zbpp::make_plan(policy, problem, {.step = kind});
  };
  pipelined waiting(how, on, plan(zbpp::step_kind::synchronous));
  pipelined early(how, on, plan(zbpp::step_kind::post_validated));
  zbpp::bench::compare_steps(state, waiting.pipe, early.pipe, 20);
}

}  // namespace

BENCHMARK_CAPTURE(steps, zb_h2, zbpp::zb_h2{})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(12);
BENCHMARK_CAPTURE(steps, zb_v, zbpp::zb_v{})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(12);
BENCHMARK(train_gpt)
    ->ArgName("microbatches")
    ->Arg(8)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(40);
