// SPDX-License-Identifier: Apache-2.0
//
// Measures what the host does to issue work to GPUs, without CUDA itself: calls of CUDA are
// replaced by functions that do nothing, so no GPU is needed. Reports nanoseconds per instruction,
// the calls that would enqueue something, and heap allocations per step; and the same of steps that
// are replayed as one graph.
#include "idle_cuda.hpp"
#include "idle_stage.hpp"
#include <zbpp/cuda/device.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/zbpp.hpp>

#include <support/count_allocations.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <vector>

namespace {

void run_steps(
    benchmark::State& state, zbpp::any_policy const& decide, bool is_v, zbpp::cuda::replay replay) {
  auto const ranks = static_cast<int>(state.range(0));
  auto const microbatches = static_cast<int>(state.range(1));
  auto const problem = idle_problem(
      is_v ? zbpp::placement::v_shape(ranks) : zbpp::placement::linear(ranks), microbatches);
  auto const plan = zbpp::make_plan(decide, problem);
  std::vector<idle_stage> stages(static_cast<std::size_t>(problem.stages()));
  zbpp::pipeline pipe{plan, zbpp::cuda::device{.replay = replay}, stages};
  for (int warm = 0; warm < 3; ++warm) pipe.step();
  auto const calls = idle_cuda::calls_so_far();
  auto const start = std::chrono::steady_clock::now();
  auto const allocated = zbpp::test::count_allocations([&] {
    for (auto _ : state) benchmark::DoNotOptimize(pipe.step());
  });
  std::chrono::duration<double, std::nano> const took = std::chrono::steady_clock::now() - start;
  auto const steps = static_cast<double>(state.iterations());
  auto const instructions = static_cast<double>(plan.program().instructions().size());
  state.counters["allocations_a_step"] = static_cast<double>(allocated) / steps;
  state.counters["ns_an_instruction"] = took.count() / steps / instructions;
  state.counters["calls_an_instruction"] =
      static_cast<double>(idle_cuda::calls_so_far() - calls) / steps / instructions;
}

void issuing(benchmark::State& state, zbpp::any_policy const& decide, bool is_v) {
  run_steps(state, decide, is_v, zbpp::cuda::replay::none);
}
void replaying(benchmark::State& state, zbpp::any_policy const& decide, bool is_v) {
  run_steps(state, decide, is_v, zbpp::cuda::replay::step);
}

}  // namespace

BENCHMARK_CAPTURE(issuing, one_f_one_b, zbpp::one_f_one_b{}, false)
    ->ArgNames({"ranks", "microbatches"})
    ->Args({4, 16})
    ->Args({8, 64});
BENCHMARK_CAPTURE(issuing, zb_h1, zbpp::zb_h1{}, false)
    ->ArgNames({"ranks", "microbatches"})
    ->Args({4, 16})
    ->Args({8, 16})
    ->Args({8, 64})
    ->Args({8, 256});
BENCHMARK_CAPTURE(replaying, zb_h1, zbpp::zb_h1{}, false)
    ->ArgNames({"ranks", "microbatches"})
    ->Args({8, 16})
    ->Args({8, 64})
    ->Args({8, 256});
BENCHMARK_CAPTURE(issuing, zb_v, zbpp::zb_v{}, true)
    ->ArgNames({"ranks", "microbatches"})
    ->Args({4, 16})
    ->Args({8, 64});
