// SPDX-License-Identifier: Apache-2.0
//
// How long planning takes: one pass of the list scheduler, a whole search, and the lower bound.
#include <zbpp/analysis/bounds.hpp>
#include <zbpp/planner/detail/list_scheduler.hpp>
#include <zbpp/planner/detail/rule_search.hpp>
#include <zbpp/planner/greedy_auto.hpp>

#include <benchmark/benchmark.h>

#include <chrono>

namespace {

// The 14.6B profile of the paper with room for `times_ranks` p activations.
zbpp::problem problem_of(int ranks, int microbatches, double times_ranks) {
  zbpp::stage_costs costs{
      .forward = 11347000, .backward_input = 11248000, .backward_weight = 8132000};
  costs.activation = 1000;
  costs.weight_gradient_input = 433;
  auto const room = static_cast<zbpp::bytes>(times_ranks * ranks);
  return {zbpp::placement::linear(ranks), microbatches, costs, 377000, {room * costs.activation}};
}

// Arguments: ranks, microbatches.
void one_pass(benchmark::State& state) {
  auto const what =
      problem_of(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), 1.5);
  auto const rules = zbpp::detail::candidate_maker(
                         what, zbpp::lower_bound(what).cost, zbpp::staircase(what).forwards, 1)
                         .known()
                         .front();
  zbpp::detail::list_scheduler engine(what);
  using clock = std::chrono::steady_clock;
  auto const start = clock::now();
  for (auto _ : state) benchmark::DoNotOptimize(engine.run(rules));
  std::chrono::duration<double, std::nano> const spent = clock::now() - start;
  state.counters["ns_per_pass"] = spent.count() / static_cast<double>(state.iterations()) /
                                  static_cast<double>(engine.placed());
}

// Arguments: ranks, microbatches, percent of p activations that have room.
void greedy_auto(benchmark::State& state) {
  auto const what = problem_of(
      static_cast<int>(state.range(0)),
      static_cast<int>(state.range(1)),
      static_cast<double>(state.range(2)) / 100);
  double gap = 0;
  for (auto _ : state) {
    auto const found = zbpp::detail::find_order(what, {}, 0);
    gap = static_cast<double>(found.cost) / static_cast<double>(found.bound.cost) - 1;
  }
  state.counters["gap"] = gap;
}

// Arguments: ranks, microbatches, whether on a V.
void lower_bound(benchmark::State& state) {
  auto what = problem_of(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), 1);
  if (state.range(2) != 0)
    what = zbpp::problem(
        zbpp::placement::v_shape(what.ranks()),
        what.microbatches(),
        what.costs(0),
        what.transfer(),
        {2 * *what.memory_limit(0)});
  for (auto _ : state) benchmark::DoNotOptimize(zbpp::lower_bound(what));
}

BENCHMARK(one_pass)
    ->Args({8, 24})
    ->Args({32, 256})
    ->Args({128, 1024})
    ->Args({1024, 8192})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(greedy_auto)->Args({1024, 8192, 150})->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK(greedy_auto)
    ->ArgsProduct({{8}, {24}, {100, 125, 150, 200}})
    ->ArgsProduct({{32}, {256}, {100, 125, 150, 200}})
    ->ArgsProduct({{128}, {1024}, {100, 125, 150, 200}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(lower_bound)
    ->Args({32, 256, 0})
    ->Args({32, 256, 1})
    ->Args({128, 1024, 0})
    ->Args({1024, 8192, 0})
    ->Unit(benchmark::kMillisecond);

}  // namespace
