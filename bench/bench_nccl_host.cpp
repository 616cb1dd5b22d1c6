// SPDX-License-Identifier: Apache-2.0
//
// Measures what the host of a rank does to issue steps over NCCL, and to replay them, one by one
// and behind others, without CUDA and NCCL themselves: their calls are replaced by functions that
// do nothing. Reports the calls of CUDA that would enqueue something, and heap allocations per
// step.
#include "idle_cuda.hpp"
#include "idle_stage.hpp"
#include <zbpp/nccl/ranks.hpp>
#include <zbpp/zbpp.hpp>

#include <support/asio_ranks.hpp>
#include <support/count_allocations.hpp>

#include <benchmark/benchmark.h>

#include <latch>
#include <string>
#include <vector>

namespace {

// Counts a latch down where it goes, whatever happens before.
struct counting_down {
  std::latch& waited_for;

  explicit counting_down(std::latch& latch) : waited_for(latch) {}
  counting_down(counting_down const&) = delete;
  counting_down& operator=(counting_down const&) = delete;
  ~counting_down() { waited_for.count_down(); }
};

// Rank 1 of 4 takes steps; the others, which are threads, only make their pipelines and begin.
// With several steps at once, each begins behind others.
void run_steps(benchmark::State& state, zbpp::cuda::replay replay, int at_once = 1) {
  auto const plan = zbpp::make_plan(
      zbpp::zb_h1{},
      idle_problem(zbpp::placement::linear(4), static_cast<int>(state.range(0))),
      {.layout = zbpp::channel_layout::one_per_rank});
  std::latch measured(1);  // no collective call, in which the others would miss the steps of rank 1
  auto const thrown = zbpp::test::run_ranks(
      4, zbpp::test::patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
        std::vector<idle_stage> stages(1);
        zbpp::nccl::ranks_settings settings;
        settings.replay = replay;
        settings.steps_at_once = at_once;
        zbpp::pipeline pipe{plan, zbpp::nccl::ranks(meeting, settings), stages};
        auto const step = [&] {
          if (at_once > 1)
            benchmark::DoNotOptimize(pipe.step_async());
          else
            benchmark::DoNotOptimize(pipe.step());
        };
        for (int warm = 0; warm < 2 * at_once + 1; ++warm) step();
        meeting.barrier();
        if (meeting.rank() == 1) {
          counting_down const at_end{measured};
          auto const calls = idle_cuda::calls_so_far();
          auto const allocated = zbpp::test::count_allocations([&] {
            for (auto _ : state) step();
          });
          auto const steps = static_cast<double>(state.iterations());
          state.counters["allocations_a_step"] = static_cast<double>(allocated) / steps;
          state.counters["calls_a_step"] =
              static_cast<double>(idle_cuda::calls_so_far() - calls) / steps;
        }
        measured.wait();
      });
  for (auto const& text : thrown)
    if (!text.empty()) state.SkipWithError(text.c_str());
}

void issuing(benchmark::State& state) { run_steps(state, zbpp::cuda::replay::none); }
void replaying(benchmark::State& state) { run_steps(state, zbpp::cuda::replay::step); }
void issuing_behind_others(benchmark::State& state) {
  run_steps(state, zbpp::cuda::replay::none, 2);
}
void replaying_behind_others(benchmark::State& state) {
  run_steps(state, zbpp::cuda::replay::step, 2);
}

}  // namespace

BENCHMARK(issuing)->ArgName("microbatches")->Arg(16)->Arg(64)->Arg(256);
BENCHMARK(replaying)->ArgName("microbatches")->Arg(16)->Arg(64)->Arg(256);
BENCHMARK(issuing_behind_others)->ArgName("microbatches")->Arg(16)->Arg(64)->Arg(256);
BENCHMARK(replaying_behind_others)->ArgName("microbatches")->Arg(16)->Arg(64)->Arg(256);
