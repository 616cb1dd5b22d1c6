// SPDX-License-Identifier: Apache-2.0
//
// What the engine itself costs: flows whose passes do nothing, all ranks on one thread under
// virtual time. Reports nanoseconds an instruction and heap allocations a step.
#include <zbpp/zbpp.hpp>

#include <support/count_allocations.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <vector>

namespace {

struct idle_stage {
  zbpp::flow operator()(zbpp::microbatch mb) {
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([] {});
    co_await mb.send_activation(zbpp::buffer{});
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([] {});
    co_await mb.send_gradient(zbpp::buffer{});
    co_await zbpp::W([] {});
  }
};

void engine(benchmark::State& state, zbpp::any_policy const& decide, bool is_v) {
  auto const ranks = static_cast<int>(state.range(0));
  auto const microbatches = static_cast<int>(state.range(1));
  zbpp::problem const problem(
      is_v ? zbpp::placement::v_shape(ranks) : zbpp::placement::linear(ranks),
      microbatches,
      zbpp::stage_costs{.forward = 3, .backward_input = 3, .backward_weight = 2},
      1);
  auto const plan = zbpp::make_plan(decide, problem);
  std::vector<idle_stage> stages(static_cast<std::size_t>(problem.stages()));
  zbpp::pipeline pipe{plan, zbpp::virtual_time{}, stages};
  pipe.step();
  auto const start = std::chrono::steady_clock::now();
  auto const allocated = zbpp::test::count_allocations([&] {
    for (auto _ : state) benchmark::DoNotOptimize(pipe.step());
  });
  std::chrono::duration<double, std::nano> const took = std::chrono::steady_clock::now() - start;
  auto const steps = static_cast<double>(state.iterations());
  auto const instructions = static_cast<double>(plan.program().instructions().size());
  state.counters["allocations_a_step"] = static_cast<double>(allocated) / steps;
  state.counters["ns_an_instruction"] = took.count() / steps / instructions;
}

}  // namespace

BENCHMARK_CAPTURE(engine, zb_h1, zbpp::zb_h1{}, false)
    ->ArgNames({"ranks", "microbatches"})
    ->Args({8, 32})
    ->Args({64, 256});
BENCHMARK_CAPTURE(engine, zb_v, zbpp::zb_v{}, true)
    ->ArgNames({"ranks", "microbatches"})
    ->Args({8, 32})
    ->Args({64, 256});
