// SPDX-License-Identifier: Apache-2.0
//
// What validating afterwards gains and costs. `steps` runs both kinds of steps in turn, on threads
// whose passes only wait, and reports what one gains over the other beside what the analysis says.
// `adamw` steps weights in both kinds, with both ways to take a step back; `weights` reads them to
// be compared with those of other ranks.
#include "steps_in_turn.hpp"
#include "waiting.hpp"
#include <zbpp/planner/registry.hpp>
#include <zbpp/runtime/detail/grid_agreement.hpp>
#include <zbpp/zbpp.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <span>
#include <vector>

namespace {

// An optimizer of one layer whose step takes a while.
struct waiting_optimizer final : zbpp::optimizer {
  static constexpr zbpp::ticks time = 1'000'000;

  [[nodiscard]] int layers() const override { return 1; }
  void measure(std::span<zbpp::gradient_state> states, zbpp::pass_context) override {
    states[0] = {1.0, true};
  }
  void step(zbpp::step_settings const&, zbpp::pass_context) override {
    zbpp::bench::wait_for(time);
  }
  void commit(zbpp::pass_context) override {}
  void undo(zbpp::pass_context) override {}
  void skip(zbpp::pass_context) override {}
};

struct optimized_stage : zbpp::bench::waiting_stage {
  waiting_optimizer own{};

  waiting_optimizer& optimizer() { return own; }
};

void steps(benchmark::State& state, zbpp::any_policy const& decide, int microbatches) {
  constexpr int ranks = 8;
  auto const transfer = zbpp::from_milliseconds(0.2);
  auto const pass = zbpp::from_milliseconds(2);
  zbpp::stage_costs const costs{
      .forward = pass,
      .backward_input = pass,
      .backward_weight = pass,
      .optimizer_step = waiting_optimizer::time};
  zbpp::problem const problem(zbpp::placement::linear(ranks), microbatches, costs, transfer);
  auto const order = decide(problem);
  auto const make = [&](zbpp::step_kind kind) {
    return zbpp::make_plan("waiting", order, problem, {.step = kind});
  };
  auto const late = make(zbpp::step_kind::post_validated);
  auto const waiting = make(zbpp::step_kind::synchronous);
  std::vector<optimized_stage> stages(ranks, optimized_stage{{costs}});
  zbpp::threads const backend{.emulates_transfers = true};
  zbpp::pipeline late_pipe{late, backend, stages};
  zbpp::pipeline waiting_pipe{waiting, backend, stages};
  zbpp::bench::compare_steps(state, waiting_pipe, late_pipe, 10);
}

enum class kind { final, early_weights, early_copies, undone_weights, undone_copies };

void adamw(benchmark::State& state, kind what) {
  constexpr std::size_t size = std::size_t{1} << 22;  // larger than caches, as models are
  std::vector<float> weights(size, 0.5F);
  std::vector<float> gradients(size, 1e-3F);
  bool const copies = what == kind::early_copies || what == kind::undone_copies;
  zbpp::optim::adamw own(
      {{weights, gradients}},
      {.undo = copies ? zbpp::optim::undo_method::copies : zbpp::optim::undo_method::weights});
  zbpp::arena memory;
  zbpp::pass_context const ctx(memory);
  zbpp::step_settings how{.learning_rate = 1e-3, .is_final = what == kind::final};
  own.step(how, ctx);  // takes what it keeps from the system
  if (!how.is_final) own.undo(ctx);
  for (auto _ : state) {
    own.step(how, ctx);
    if (what == kind::early_weights || what == kind::early_copies) own.commit(ctx);
    if (what == kind::undone_weights || what == kind::undone_copies) own.undo(ctx);
    ++how.updates;
  }
  state.counters["ns_per_weight"] = benchmark::Counter(
      1e-9 * static_cast<double>(size) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["kept_bytes_per_weight"] = what == kind::final ? 0 : copies ? 12 : 4;
}

// What comparing weights costs a rank, once before the first step.
void weights(benchmark::State& state) {
  std::vector<float> all(std::size_t{1} << 22, 0.5F);
  std::vector<float> gradients(all.size());
  std::vector<float> copy(all.size());
  zbpp::optim::adamw own({{all, gradients}});
  zbpp::arena memory;
  for (auto _ : state) {
    own.read_weights(0, copy, zbpp::pass_context(memory));
    benchmark::DoNotOptimize(zbpp::detail::digest_of(copy));
  }
  state.counters["ns_per_weight"] = benchmark::Counter(
      1e-9 * static_cast<double>(all.size()) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

}  // namespace

#define ZBPP_STEPS(policy, microbatches)                                                           \
  BENCHMARK_CAPTURE(steps, policy##_m##microbatches, zbpp::policy{}, microbatches)                 \
      ->UseManualTime()                                                                            \
      ->Unit(benchmark::kMillisecond)                                                              \
      ->Iterations(5)
ZBPP_STEPS(zb_h2, 32);
ZBPP_STEPS(zb_h1, 32);
ZBPP_STEPS(one_f_one_b, 32);
ZBPP_STEPS(zb_h2, 16);

BENCHMARK(weights);
BENCHMARK_CAPTURE(adamw, final, kind::final);
BENCHMARK_CAPTURE(adamw, early_weights, kind::early_weights);
BENCHMARK_CAPTURE(adamw, early_copies, kind::early_copies);
BENCHMARK_CAPTURE(adamw, undone_weights, kind::undone_weights);
BENCHMARK_CAPTURE(adamw, undone_copies, kind::undone_copies);
