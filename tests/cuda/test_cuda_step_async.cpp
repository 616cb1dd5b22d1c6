// SPDX-License-Identifier: Apache-2.0
//
// Steps that are begun while others run, on the model of CUDA, issued and replayed: they have the
// bits of steps that run one by one, their losses come late, as many are under way as was said, and
// a failure is that of its step.
#include <zbpp/cuda/device.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_replay.hpp>
#include <support/cuda_steps.hpp>
#include <support/cuda_training.hpp>
#include <support/needless_calls.hpp>
#include <support/plan_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/toy_history.hpp>

#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test_cuda_step_async {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::problem;

namespace {

constexpr int steps = 7;

/// What one process makes of the steps, whose gradients add up.
toy::history run_alone(plan const& planned) {
  auto all = toy::make_model(planned.problem().stages());
  toy::fused_passes const is_fused(planned);
  toy::history result;
  for (int i = 0; i < steps; ++i)
    result.losses.push_back(
        toy::device_reference_step(all, i, planned.problem().microbatches(), is_fused));
  result.models.push_back(std::move(all));
  return result;
}

/// Runs the steps, each begun while as many others run as may be.
template <class Training>
toy::history run_together(Training& training, int at_once) {
  toy::history result;
  auto& pipe = training.pipe();
  std::deque<zbpp::started_step> begun;
  for (int i = 0; i < steps; ++i) {
    begun.push_back(pipe.step_async());
    CHECK(begun.back().number() == i);
    if (static_cast<int>(begun.size()) < at_once && i + 1 < steps) continue;
    while (!begun.empty() && (static_cast<int>(begun.size()) == at_once || i + 1 == steps)) {
      result.losses.push_back(begun.front().get().losses);
      begun.pop_front();
      CHECK(pipe.steps() == static_cast<std::int64_t>(result.losses.size()));
    }
  }
  result.models.push_back(training.given());
  return result;
}

std::string trouble_of(
    plan const& planned,
    toy::history const& expected,
    model::options const& machine,
    cuda::device const& backend) {
  return trouble_in(machine, [&]() -> std::string {
    toy::counted_training<> training(planned, backend);
    return run_together(training, backend.steps_at_once) == expected ? "" : "wrong bits;";
  });
}

}  // namespace

TEST_CASE("steps that are begun while others run have the bits of one process", "[cuda][long]") {
  std::uint64_t seed = 0;
  for (int p : thinned<std::vector<int>>({1, 2, 3}, {3}))
    for (auto const& placement : placements_to_run(p)) {
      ZBPP_SEEDED(random, p);
      problem const problem(placement, p + 1, launched_costs(), 87);
      for_each_plan_of(problem, {}, [&](std::string const& name, plan const& plain) {
        auto passes = plain.schedule();
        if (random.chance(0.4)) passes = pair_at_random(passes, problem, random);
        INFO(name << ", " << pairs_in(passes) << " pairs");
        auto const planned = make_plan(name, passes, problem);
        auto const expected = run_alone(planned);
        for (auto const replay : {cuda::replay::none, cuda::replay::step})
          for (int at_once : {1, 2, 3}) {
            INFO(at_once << " at once, replays: " << (replay == cuda::replay::step));
            auto const order = at_once == 2 ? model::mode::lazy : model::mode::random;
            CHECK(
                trouble_of(
                    planned,
                    expected,
                    {.seed = ++seed, .order = order},
                    {.replay = replay, .steps_at_once = at_once}) == "");
          }
      });
    }
}

TEST_CASE("so have they on several devices, with few queues, and one thread for each", "[cuda]") {
  auto const planned = row_plan(3, 4);
  auto const expected = run_alone(planned);
  for (std::uint64_t seed = 1; seed <= thinned(10U, 2U); ++seed) {
    auto const apart = cuda::one_device_per_rank(3);
    CHECK(
        trouble_of(
            planned,
            expected,
            {.seed = seed, .devices = 3, .hosts = 3},
            {.devices = apart, .steps_at_once = 2}) == "");
    CHECK(
        trouble_of(
            planned,
            expected,
            {.seed = seed, .devices = 3},
            {.devices = apart, .replay = cuda::replay::step, .steps_at_once = 2}) == "");
    CHECK(
        trouble_of(planned, expected, {.seed = seed, .connections = 1}, {.steps_at_once = 2}) ==
        "");
    CHECK(
        trouble_of(
            planned,
            expected,
            {.seed = seed, .launch_depth = 2},
            {.run_ahead = 1, .steps_at_once = 2}) == "");
  }
}

TEST_CASE("the host waits for no step before as many are under way as may be", "[cuda]") {
  for (auto const replay : {cuda::replay::none, cuda::replay::step}) {
    model::reset({.order = model::mode::lazy, .launch_depth = 1 << 20});
    toy::counted_training<> training(row_plan(3, 4), {.replay = replay, .steps_at_once = 2});
    auto& pipe = training.pipe();
    for (int i = 0; i < 4; ++i) pipe.step_async().get();
    auto const first = pipe.step_async();
    auto const running = model::pending();
    CHECK(running > 0);
    model::start_counting();
    auto const second = pipe.step_async();
    CHECK(first_of(model::heavy_calls()) == "");
    CHECK(model::pending() > running);
    CHECK(pipe.steps() == 4);
    auto const third = pipe.step_async();
    CHECK(pipe.steps() == 5);  // it has waited for the first
    CHECK(
        refusal([&] { static_cast<void>(first.get()); }) ==
        "get() is called when another step has taken the place of the result; call it before "
        "step() or run(), and before as many more steps begin as steps_at_once says");
    CHECK(second.number() == 5);
    static_cast<void>(pipe.evaluate());
    CHECK(pipe.steps() == 7);  // it has waited for all
    CHECK(&third.get() == &third.get());
    CHECK(first_of(model::faults()) == "");
  }
}

TEST_CASE("no wait and no record of a step that is begun early can be left out", "[cuda]") {
  auto const planned = row_plan(3, 4);
  auto expected = toy::make_model(3);
  std::vector<std::vector<double>> losses;
  for (int i = 0; i < 2; ++i) losses.push_back(toy::device_reference_step(expected, i, 4));
  // All streams of ranks wait for the step before, also those that wait for another one at once.
  constexpr std::uint64_t forks = 3;
  auto const is_clean = [&](std::string_view function, std::uint64_t index) {
    if (function == "cudaStreamWaitEvent" && index < forks) return false;
    model::reset({.seed = 9, .order = model::mode::lazy});
    bool is_same = false;
    {
      using passes = toy::passes_with_scratch<toy::counted>;
      toy::counted_training<passes> training(planned, {.steps_at_once = 2});
      auto const first = training.pipe().step_async();
      model::start_counting();
      if (!function.empty()) model::skip(function, index);
      auto const second = training.pipe().step_async();
      is_same = first.get().losses == losses[0] && second.get().losses == losses[1] &&
                model::pending() == 0 && toy::is_same(training.given(), expected);
    }
    return is_same && model::faults().empty();
  };
  CHECK(needless_calls({"cudaStreamWaitEvent", "cudaEventRecord"}, is_clean) == "");
}

TEST_CASE("a step that fails takes those behind it with it, and tells its number", "[cuda]") {
  for (auto const replay : {cuda::replay::none, cuda::replay::step}) {
    model::reset({.seed = 3});
    toy::counted_training<> training(row_plan(3, 4), {.replay = replay, .steps_at_once = 3});
    auto& pipe = training.pipe();
    for (int i = 0; i < 4; ++i) pipe.step_async().get();
    auto const good = pipe.step_async();
    auto const bad = pipe.step_async();
    auto const behind = pipe.step_async();
    static_cast<void>(good.get());
    model::fail_next("cudaEventSynchronize", cudaErrorInvalidValue);
    for (auto const& each : {bad, behind, bad}) {
      CHECK_THROWS_AS(each.get(), cuda::cuda_error);
      CHECK(pipe.steps() == bad.number());
    }
    CHECK(pipe.failures().size() == 1);
    CHECK(model::pending() == 0);
    auto const next = pipe.step_async();
    CHECK(next.number() == bad.number());
    static_cast<void>(next.get());
    CHECK_THROWS_AS(behind.get(), cuda::cuda_error);
    CHECK(first_of(model::faults()) == "");
    // A kernel that fails, in the second of two steps, and all calls behind it.
    static_cast<void>(pipe.step_async());
    model::kernel_fault(5);
    auto const last = pipe.step_async();
    CHECK_THROWS_AS(last.get(), cuda::cuda_error);
    CHECK_THROWS_AS(pipe.step(), cuda::cuda_error);
  }
}

namespace {

struct doomed_stage {
  toy::launched_stage work;
  bool const* throws;

  zbpp::flow operator()(zbpp::microbatch mb) {
    if (*throws && mb.stage() == 1 && mb.index() == 2) throw std::runtime_error("no flow");
    return work(mb);
  }
};

}  // namespace

TEST_CASE("what fails while a step is issued leaves the steps before it whole", "[cuda]") {
  auto const planned = row_plan(3, 4);
  checked_gpus const gpus({.seed = 6});
  bool throws = false;
  auto all = toy::make_model(3);
  auto expected = toy::make_model(3);
  std::vector<doomed_stage> stages;
  for (auto& each : all) stages.push_back({toy::launched_stage(each), &throws});
  pipeline pipe{
      planned,
      cuda::device{.edges = toy::edge_shapes(planned.problem()), .steps_at_once = 3},
      stages};
  auto const first = pipe.step_async();
  auto const second = pipe.step_async();
  throws = true;
  CHECK_THROWS_AS(pipe.step_async(), zbpp::error);
  CHECK(
      to_string(pipe.failures().front().location).find("stage 1, microbatch 2") !=
      std::string::npos);
  CHECK(pipe.steps() == 2);
  int number = 0;
  for (auto const& each : {first, second}) {
    auto const losses = toy::device_reference_step(expected, number++, 4);
    CHECK(each.get().losses == losses);
  }
  throws = false;
  toy::clear_gradients(all);
  toy::clear_gradients(expected);
  CHECK(pipe.step_async().get().losses == toy::device_reference_step(expected, 2, 4));
  CHECK(toy::is_same(all, expected));
}

TEST_CASE("what a caller enqueues keeps its place among steps that are begun", "[cuda]") {
  for (auto const replay : {cuda::replay::none, cuda::replay::step}) {
    model::reset({.seed = 2, .order = model::mode::lazy, .launch_depth = 1 << 20});
    std::vector<cuda::stream> own;
    cuda::device backend{.replay = replay, .steps_at_once = 2};
    for (int rank = 0; rank < 3; ++rank)
      backend.devices.push_back({.compute = own.emplace_back(cuda::stream_priority::usual).view()});
    {
      auto const planned = row_plan(3, 4);
      toy::counted_training<> training(planned, backend);
      auto& pipe = training.pipe();
      auto const& weights = training.given().back().layers.front().gradient;
      std::vector<std::vector<float>> seen;
      for (int i = 0; i < steps; ++i) {
        static_cast<void>(pipe.step_async());
        // On the stream of the first rank, and of the gradients of the last one.
        cuda::check(
            model::launch(own.front().view(), "caller", {}, {}, [&] { seen.push_back(weights); }));
      }
      pipe.evaluate();
      for (auto const& each : own) each.view().synchronize();
      auto alone = toy::make_model(3);
      REQUIRE(seen.size() == steps);
      for (int i = 0; i < steps; ++i) {
        static_cast<void>(toy::reference_step(alone, i, 4));
        CHECK(toy::is_same(seen[zbpp::detail::index(i)], alone.back().layers.front().gradient));
      }
    }
    CHECK(first_of(model::faults()) == "");
  }
}

TEST_CASE(
    "a pipeline may go as soon as its last step is done, whatever its callers' streams wait for",
    "[cuda]") {
  for (auto const order : {model::mode::lazy, model::mode::random}) {
    checked_gpus const machine({.seed = 5, .order = order});
    std::vector<cuda::stream> own;
    cuda::device backend{.steps_at_once = 2};
    for (int rank = 0; rank < 2; ++rank)
      backend.devices.push_back({.compute = own.emplace_back(cuda::stream_priority::usual).view()});
    auto const planned = row_plan(2, 3);
    toy::counted_training<> training(planned, backend);
    auto const first = training.pipe().step_async();
    auto const second = training.pipe().step_async();
    static_cast<void>(first.get());
    static_cast<void>(second.get());
  }
}

TEST_CASE("a number of steps at once that cannot be is refused", "[cuda]") {
  auto const planned = row_plan(2, 4);
  auto all = toy::make_model(2);
  std::vector<toy::launched_stage> stages(all.begin(), all.end());
  model::reset();
  auto const refused = [&](cuda::device const& backend) {
    return refusal([&] { pipeline pipe{planned, backend, stages}; });
  };
  CHECK(refused({.steps_at_once = 0}) == "steps_at_once is below 1; give a number of steps from 1");
  CHECK(
      refused({.traces = true, .steps_at_once = 2}) ==
      "steps_at_once is above 1 and traces is set, which times one step; leave one of them out");
  using stage = gpu_steps::optimized_stage<toy::basic_passes<toy::launched>>;
  std::vector<stage> optimized;
  for (auto& s : all) optimized.emplace_back(s, -1);
  pipeline pipe(planned, cuda::device{}, optimized, gpu_steps::options(0, false));
  CHECK(
      refusal([&] { static_cast<void>(pipe.step_async()); }) ==
      "step_async() is called where a stage has an optimizer(), or where training_options ask for "
      "accumulation, a loss scale, a learning rate or on_gradients_ready, for which the host waits "
      "in every step; call step()");
}

TEST_CASE("no step that was begun gives the losses of another one", "[cuda]") {
  for (int at_once : {1, 2, 3})
    for (auto const replay : {cuda::replay::none, cuda::replay::step}) {
      model::reset();
      toy::counted_training<> training(
          row_plan(3, 4), {.replay = replay, .steps_at_once = at_once});
      auto& pipe = training.pipe();
      auto losses_of = [&, alone = toy::make_model(3), next = 0](int step) mutable {
        std::vector<double> losses;
        for (; next <= step; ++next) losses = toy::device_reference_step(alone, next, 4);
        return losses;
      };
      constexpr auto start = "get() is called when another step has taken the place of the result";
      auto const is_gone = [&](auto const& begun) {
        return refusal([&] { static_cast<void>(begun.get()); }).rfind(start, 0) == 0;
      };
      auto const first = pipe.step_async();
      static_cast<void>(losses_of(0));
      CHECK(pipe.step().losses == losses_of(1));
      CHECK(is_gone(first));
      auto const second = pipe.step_async();
      CHECK(second.get().losses == losses_of(2));
      static_cast<void>(pipe.evaluate());
      static_cast<void>(second.get());
      pipe.run(2);
      CHECK(is_gone(first));
      CHECK(is_gone(second));
      static_cast<void>(losses_of(4));
      auto const third = pipe.step_async();
      CHECK(third.number() == 5);
      CHECK(third.get().losses == losses_of(5));
      CHECK(pipe.steps() == 6);
    }
}

}  // namespace test_cuda_step_async
