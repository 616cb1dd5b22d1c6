// SPDX-License-Identifier: Apache-2.0
//
// What planning costs for each pass of a schedule: making it, simulating it, finding its period,
// lowering it to a program, and proving that the program may run. ZB-H2 on a linear placement, so a
// step of p ranks and m microbatches has 3 p m passes.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/period.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <benchmark/benchmark.h>

#include <chrono>

namespace {

zbpp::problem problem_of(benchmark::State const& state) {
  auto const ranks = static_cast<int>(state.range(0));
  auto const microbatches = static_cast<int>(state.range(1));
  zbpp::stage_costs const costs{
      .forward = 18'522'000,
      .backward_input = 18'086'000,
      .backward_weight = 9'337'000,
      .activation = 2,
      .weight_gradient_input = 1,
      .edge = 1};
  return {zbpp::placement::linear(ranks), microbatches, costs, 601'000, {1'000'000'000}};
}

// Times `work` and reports its wall-clock time for each pass of the schedule, in nanoseconds.
template <class Work>
void measure(benchmark::State& state, zbpp::schedule const& order, Work work) {
  using clock = std::chrono::steady_clock;
  auto const start = clock::now();
  for (auto _ : state) benchmark::DoNotOptimize(work());
  std::chrono::duration<double, std::nano> const spent = clock::now() - start;
  auto const passes = static_cast<double>(order.passes().size());
  state.counters["ns_per_pass"] = spent.count() / static_cast<double>(state.iterations()) / passes;
}

void make_schedule(benchmark::State& state) {
  auto const problem = problem_of(state);
  measure(state, zbpp::zb_h2{}(problem), [&] { return zbpp::zb_h2{}(problem); });
}

void simulate_schedule(benchmark::State& state) {
  auto const problem = problem_of(state);
  auto const order = zbpp::zb_h2{}(problem);
  measure(state, order, [&] { return zbpp::simulate(order, problem); });
}

void find_period(benchmark::State& state) {
  auto const problem = problem_of(state);
  auto const order = zbpp::zb_h2{}(problem);
  measure(state, order, [&] { return zbpp::period(order, problem); });
}

void lower_schedule(benchmark::State& state) {
  auto const order = zbpp::zb_h2{}(problem_of(state));
  measure(state, order, [&] { return zbpp::lower(order); });
}

void verify_program(benchmark::State& state) {
  auto const order = zbpp::zb_h2{}(problem_of(state));
  auto const code = zbpp::lower(order);
  if (!zbpp::verify(code).empty()) return state.SkipWithError("verify refuses ZB-H2");
  measure(state, order, [&] { return zbpp::verify(code); });
}

void verify_program_and_memory(benchmark::State& state) {
  auto const problem = problem_of(state);
  auto const order = zbpp::zb_h2{}(problem);
  auto const code = zbpp::lower(order);
  if (!zbpp::verify(code, problem).empty()) return state.SkipWithError("verify refuses ZB-H2");
  measure(state, order, [&] { return zbpp::verify(code, problem); });
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"p", "m"})->Args({8, 32})->Args({64, 512})->Args({256, 2048});
  bench->Unit(benchmark::kMicrosecond);
}

BENCHMARK(make_schedule)->Apply(sizes);
BENCHMARK(simulate_schedule)->Apply(sizes);
BENCHMARK(find_period)->Apply(sizes);
BENCHMARK(lower_schedule)->Apply(sizes);
BENCHMARK(verify_program)->Apply(sizes);
BENCHMARK(verify_program_and_memory)->Apply(sizes);

}  // namespace
