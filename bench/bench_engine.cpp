// SPDX-License-Identifier: Apache-2.0
//
// What the engine itself costs: flows whose passes do nothing, all ranks on one thread under
// virtual time. Reports nanoseconds an instruction and heap allocations a step, and the same beside
// bare coroutines that are resumed in the same order, have frames of the same size and do nothing;
// and what a record of messages adds, where the clock costs nothing to read.
#include "median.hpp"
#include <zbpp/planner/registry.hpp>
#include <zbpp/zbpp.hpp>

#include <support/count_allocations.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

namespace {

// Of a flow, from its first resume to its last.
struct resumed {
  std::int32_t flow;
  bool is_first;
  bool is_last;
};

struct idle_stage {
  std::vector<resumed>* order = nullptr;  // gets the resumes of a step, unless it is null

  zbpp::flow operator()(zbpp::microbatch mb) {
    auto in = co_await mb.recv_activation();
    co_await zbpp::F([&] { note(mb, true, false); });
    co_await mb.send_activation(zbpp::buffer{});
    auto back = co_await mb.recv_gradient();
    co_await zbpp::B([&] { note(mb, false, mb.is_fused()); });
    co_await mb.send_gradient(zbpp::buffer{});
    co_await zbpp::W([&] {
      if (!mb.is_fused()) note(mb, false, true);
    });
  }

 private:
  void note(zbpp::microbatch const& mb, bool is_first, bool is_last) const {
    if (order != nullptr)
      order->push_back({mb.stage() * mb.count() + mb.index(), is_first, is_last});
  }
};

// Frames of one size, freed ones first.
class frames {
 public:
  explicit frames(std::size_t size) : size_(size) {}
  frames(frames const&) = delete;
  frames& operator=(frames const&) = delete;
  ~frames() {
    for (auto* const each : free_) ::operator delete(each);
  }

  [[nodiscard]] void* take(std::size_t least) {
    if (least > size_) std::terminate();
    if (free_.empty()) return ::operator new(size_);
    auto* const taken = free_.back();
    free_.pop_back();
    return taken;
  }
  void give(void* frame) { free_.push_back(frame); }

 private:
  std::size_t size_;
  std::vector<void*> free_;
};

class bare_flow {
 public:
  struct promise_type {
    static void* operator new(std::size_t size, frames& from) { return from.take(size); }
    static void operator delete(void* /*frame*/, std::size_t) noexcept {}

    [[nodiscard]] bare_flow get_return_object() noexcept {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
    [[nodiscard]] std::suspend_always final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    [[noreturn]] void unhandled_exception() const noexcept { std::terminate(); }
  };

  std::coroutine_handle<> handle;
};

bare_flow run_bare(frames& /*from*/) {
  for (;;) co_await std::suspend_always{};
}

// Resumes bare coroutines as the flows of a step.
class bare_step {
 public:
  bare_step(std::vector<resumed> order, std::size_t flows, std::size_t frame_size)
      : order_(std::move(order)), frames_(frame_size), handles_(flows) {}

  void run() {
    for (auto const& each : order_) {
      auto& handle = handles_[static_cast<std::size_t>(each.flow)];
      if (each.is_first) handle = run_bare(frames_).handle;
      handle.resume();
      if (!each.is_last) continue;
      auto* const frame = handle.address();
      handle.destroy();
      frames_.give(frame);
    }
  }

 private:
  std::vector<resumed> order_;
  frames frames_;
  std::vector<std::coroutine_handle<>> handles_;
};

// The bytes that the frame of a flow takes.
std::size_t frame_size() {
  zbpp::detail::stage_context const common;
  zbpp::detail::flow_state state;
  state.common = &common;
  idle_stage stage;
  return static_cast<std::size_t>(zbpp::test::count_bytes([&] {
    auto const idle = stage(zbpp::microbatch(state));
    benchmark::DoNotOptimize(&idle);
  }));
}

template <class Act>
double time(Act const& act) {
  auto const start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void engine(benchmark::State& state, zbpp::any_policy const& decide, bool is_v) {
  auto const ranks = static_cast<int>(state.range(0));
  auto const microbatches = static_cast<int>(state.range(1));
  zbpp::problem const problem(
      is_v ? zbpp::placement::v_shape(ranks) : zbpp::placement::linear(ranks),
      microbatches,
      zbpp::stage_costs{.forward = 3, .backward_input = 3, .backward_weight = 2},
      1);
  auto const plan = zbpp::make_plan(decide, problem);
  std::vector<resumed> order;
  std::vector<idle_stage> stages(static_cast<std::size_t>(problem.stages()), idle_stage{&order});
  zbpp::pipeline pipe{plan, zbpp::virtual_time{}, stages};
  pipe.step();
  bare_step bare(
      order,
      static_cast<std::size_t>(problem.stages()) * static_cast<std::size_t>(microbatches),
      frame_size());
  bare.run();
  for (auto& each : stages) each.order = nullptr;
  pipe.step();

  std::vector<double> step_times;
  std::vector<double> bare_times;
  step_times.reserve(static_cast<std::size_t>(state.max_iterations));
  bare_times.reserve(static_cast<std::size_t>(state.max_iterations));
  auto const allocated = zbpp::test::count_allocations([&] {
    for (auto _ : state) {
      step_times.push_back(time([&] { benchmark::DoNotOptimize(pipe.step()); }));
      bare_times.push_back(time([&] { bare.run(); }));
      state.SetIterationTime(step_times.back());
    }
  });
  using zbpp::bench::median;
  auto const instructions = static_cast<double>(plan.program().instructions().size());
  state.counters["allocations_a_step"] =
      static_cast<double>(allocated) / static_cast<double>(state.iterations());
  state.counters["ns_an_instruction"] = 1e9 * median(step_times) / instructions;
  state.counters["bare_ns_a_resume"] = 1e9 * median(bare_times) / static_cast<double>(order.size());
  state.counters["over_bare"] = median(step_times) / median(bare_times);
}

// Steps without and with a record, in turn.
void record(benchmark::State& state) {
  auto const ranks = static_cast<int>(state.range(0));
  zbpp::problem const problem(
      zbpp::placement::linear(ranks),
      static_cast<int>(state.range(1)),
      zbpp::stage_costs{.forward = 3, .backward_input = 3, .backward_weight = 2},
      1);
  auto const plan = zbpp::make_plan(zbpp::zb_h1{}, problem);
  std::vector<idle_stage> stages(static_cast<std::size_t>(ranks));
  zbpp::pipeline plain{plan, zbpp::virtual_time{}, stages};
  zbpp::pipeline recording{plan, zbpp::virtual_time{.records_messages = true}, stages};
  plain.step();
  auto const messages = static_cast<double>(recording.step().messages.size());
  std::vector<double> differences;
  for (auto _ : state) {
    auto const before = time([&] { benchmark::DoNotOptimize(plain.step()); });
    auto const with = time([&] { benchmark::DoNotOptimize(recording.step()); });
    differences.push_back(with - before);
    state.SetIterationTime(with);
  }
  // One entry where it is sent, and one where it is taken.
  state.counters["ns_an_entry"] = 1e9 * zbpp::bench::median(differences) / (2 * messages);
}

}  // namespace

BENCHMARK(record)
    ->ArgNames({"ranks", "microbatches"})
    ->Args({8, 32})
    ->Args({64, 256})
    ->UseManualTime();
BENCHMARK_CAPTURE(engine, zb_h1, zbpp::zb_h1{}, false)
    ->ArgNames({"ranks", "microbatches"})
    ->Args({8, 32})
    ->Args({64, 256})
    ->Args({256, 1024})
    ->UseManualTime();
BENCHMARK_CAPTURE(engine, zb_v, zbpp::zb_v{}, true)
    ->ArgNames({"ranks", "microbatches"})
    ->Args({8, 32})
    ->Args({64, 256})
    ->UseManualTime();
