// SPDX-License-Identifier: Apache-2.0
//
// Steps that are captured as one graph and replayed, on the model of CUDA: they have the bits of
// steps that are issued, whatever runs first, between evaluations and failures, by a number of
// calls that does not grow with the step; and what cannot be replayed is refused by name.
#include <zbpp/cuda/device.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_replay.hpp>
#include <support/cuda_steps.hpp>
#include <support/cuda_training.hpp>
#include <support/needless_calls.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace test_cuda_replay {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::problem;

namespace {

constexpr int steps = 5;  // issued, captured, replayed thrice

/// Trains under one interleaving. @return what was wrong
std::string trouble_of(
    plan const& planned,
    toy::history const& expected,
    model::options const& machine,
    cuda::device backend = {}) {
  backend.replay = cuda::replay::step;
  return trouble_in(machine, [&] {
    std::string trouble;
    toy::counted_training<> training(planned, backend);
    for (int i = 0; i < steps; ++i) {
      model::start_counting();
      training.step();
      bool const is_launch = i > 0;
      if (model::count("cudaGraphLaunch") != (is_launch ? 1 : 0)) trouble += "a step is no launch;";
      if (i > 1 && model::count("launch") > 0) trouble += "the host launches in a replay;";
    }
    if (!(training.seen() == expected)) trouble += "wrong bits;";
    return trouble;
  });
}

}  // namespace

TEST_CASE("replayed steps have the bits of one process, whatever runs first", "[cuda][long]") {
  std::uint64_t seed = 0;
  for (int p : {1, 2, 3, 4})
    for (auto const& placement : placements_to_run(p))
      for (int m : thinned<std::vector<int>>({1, 2 * p + 1}, {2 * p + 1}))
        for_each_plan_of(
            problem(placement, m, launched_costs(), 87),
            {.recomputed = p == 2, .receive_ahead = p == 3 ? 1 : 0},
            [&](std::string const& name, plan const& planned) {
              INFO(name);
              auto const expected = toy::counted_reference(planned, steps);
              for (int i = 0; i < thinned(3, 1); ++i)
                CHECK(trouble_of(planned, expected, {.seed = ++seed}) == "");
            });
}

TEST_CASE("so have they with few queues and on several devices", "[cuda]") {
  std::uint64_t seed = 100;
  auto const planned = row_plan(3, 5);
  auto const expected = toy::counted_reference(planned, steps);
  for (int i = 0; i < thinned(20, 3); ++i) {
    INFO("interleaving " << seed);
    CHECK(trouble_of(planned, expected, {.seed = ++seed, .order = model::mode::eager}) == "");
    CHECK(trouble_of(planned, expected, {.seed = ++seed, .order = model::mode::lazy}) == "");
    CHECK(trouble_of(planned, expected, {.seed = ++seed, .connections = 1}) == "");
    CHECK(trouble_of(planned, expected, {.seed = ++seed, .launch_depth = 2}) == "");
    cuda::device const apart{.devices = cuda::one_device_per_rank(3)};
    CHECK(trouble_of(planned, expected, {.seed = ++seed, .devices = 3}, apart) == "");
  }
}

TEST_CASE("the host's part in a replayed step does not grow with it", "[cuda]") {
  std::vector<std::string> calls;
  for (int m : {3, 12, 48}) {
    INFO(m << " microbatches");
    model::reset({.seed = 7, .launch_depth = 1 << 20});
    toy::counted_training<> training(row_plan(3, m));
    for (int i = 0; i < 2; ++i) training.step();
    model::start_counting();
    training.pipe().step();
    std::vector<std::string> made;
    for (auto const& call : model::calls()) made.emplace_back(call.function);
    if (calls.empty()) calls = made;
    CHECK(made == calls);
  }
  CHECK(
      calls ==
      std::vector<std::string>{"cudaGraphLaunch", "cudaEventRecord", "cudaEventSynchronize"});
}

TEST_CASE("a replayed step tells what an issued one does", "[cuda]") {
  auto const planned = row_plan(3, 5);
  model::reset({.seed = 8});
  toy::counted_training<> training(planned);
  auto& pipe = training.pipe();
  std::vector<zbpp::bytes> issued;
  for (int i = 0; i < 4; ++i) {
    model::start_counting();
    auto const& step = pipe.step();
    CHECK(model::count("cudaGraphLaunch") == (i == 0 ? 0 : 1));
    CHECK(step.losses.size() == 5);
    CHECK(step.measured == planned.timeline());
    std::vector<zbpp::bytes> most;
    for (int rank = 0; rank < 3; ++rank)
      for (auto const of : {zbpp::purpose::activation, zbpp::purpose::edge, zbpp::purpose::receive})
        most.push_back(pipe.memory(rank).most(of));
    if (i == 0) issued = most;
    CHECK(most == issued);
    CHECK(pipe.steps() == i + 1);
  }
  CHECK(issued[0] > 0);
}

TEST_CASE("no wait and no record of a step that is captured can be left out", "[cuda]") {
  for (auto const& placement : placements_to_run(3))
    for_each_plan_of(
        problem(placement, 4, launched_costs(), 87),
        {.fused = false},
        [](std::string const& name, plan const& planned) {
          INFO(name);
          auto const expected = toy::counted_reference(planned, 3);
          // Leaves out one call of the step that is captured, and replays it. The capture begins on
          // all streams of ranks, also on those that wait for another one at once.
          constexpr std::uint64_t forks = 3;
          auto const is_clean = [&](std::string_view function, std::uint64_t index) {
            if (function == "cudaStreamWaitEvent" && index < forks) return false;
            model::reset({.seed = 9});
            bool is_same = false;
            try {
              using passes = toy::passes_with_scratch<toy::counted>;
              toy::counted_training<passes> training(planned);
              training.step();
              model::start_counting();
              if (!function.empty()) model::skip(function, index);
              training.step();
              training.step();
              is_same = training.seen() == expected;
            } catch (zbpp::error const&) {
            }
            return is_same && model::faults().empty();
          };
          CHECK(needless_calls({"cudaStreamWaitEvent", "cudaEventRecord"}, is_clean) == "");
        });
}

TEST_CASE("evaluations between replays change nothing", "[cuda]") {
  auto const planned = row_plan(3, 5);
  auto const expected = toy::counted_reference(planned, 8);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    INFO("interleaving " << seed);
    checked_gpus const gpus({.seed = seed});
    toy::counted_training<> training(planned);
    std::vector<zbpp::buffer> kept;
    for (int i = 0; i < 8; ++i) {
      model::start_counting();
      training.step();
      // The fourth step may not use the memory that is kept here, nor the sixth, which replays
      // one that was captured meanwhile; after that it is free again.
      CHECK(model::count("cudaGraphInstantiate") == (i == 1 || i == 4 || i == 7 ? 1 : 0));
      CHECK(model::count("cudaGraphLaunch") == (i == 0 || i == 3 || i == 6 ? 0 : 1));
      if (i == 5) kept.clear();
      training.pipe().evaluate([&](zbpp::evaluation_output const& out) {
        if (i == 2) kept.push_back(out.message[0]);
      });
      for (auto const& each : kept)
        model::uninitialise(each.data(), each.size());  // whoever reads it is told
    }
    CHECK(training.seen() == expected);
  }
}

TEST_CASE("a call of CUDA that fails ends a captured or replayed step, and the next one works") {
  auto const planned = row_plan(3, 5);
  auto const expected = toy::counted_reference(planned, 6);
  std::uint64_t seed = 0;
  for (auto const* function :
       {"launch",
        "cudaEventRecord",
        "cudaStreamWaitEvent",
        "cudaStreamIsCapturing",
        "cudaStreamBeginCapture",
        "cudaGraphInstantiate",
        "cudaGraphLaunch"}) {
    INFO(function);
    checked_gpus const gpus({.seed = ++seed});
    toy::counted_training<> training(planned);
    auto const fail = [&] {
      model::fail_next(function, cudaErrorInvalidValue);
      CHECK_THROWS_AS(training.pipe().step(), cuda::cuda_error);
      CHECK(training.pipe().failures().size() == 1);
      CHECK(model::pending() == 0);
    };
    training.step();
    fail();  // while it is captured, so that nothing has run
    for (int i = 0; i < 3; ++i) training.step();
    if (std::string_view(function) == "cudaGraphLaunch") fail();
    for (int i = 0; i < 2; ++i) training.step();
    CHECK(training.seen() == expected);
  }
}

TEST_CASE("a kernel that fails in a replay ends the step, and CUDA cannot go on", "[cuda]") {
  auto const planned = row_plan(3, 5);
  for (std::uint64_t kernel : {0U, 30U, 100U}) {
    INFO("kernel " << kernel);
    model::reset({.seed = 4});
    toy::counted_training<> training(planned);
    for (int i = 0; i < 3; ++i) training.step();
    model::kernel_fault(kernel);
    for (int k = 0; k < 2; ++k) {
      CHECK_THROWS_AS(training.pipe().step(), cuda::cuda_error);
      CHECK(training.pipe().steps() == 3);
    }
  }
}

TEST_CASE("a replayed step waits for what the caller has enqueued on an adopted stream", "[cuda]") {
  auto const planned = row_plan(3, 5);
  auto const expected = toy::counted_reference(planned, 6);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    model::reset({.seed = seed, .order = seed % 2 == 0 ? model::mode::lazy : model::mode::random});
    {
      std::vector<cuda::stream> own;
      cuda::device backend{.replay = cuda::replay::step};
      for (int rank = 0; rank < 3; ++rank)
        backend.devices.push_back(
            {.compute = own.emplace_back(cuda::stream_priority::usual).view()});
      toy::counted_training<> training(planned, backend);
      int enqueued = 0;
      int ran = 0;
      for (int i = 0; i < 6; ++i) {
        for (auto const& each : own) {
          ++enqueued;
          cuda::check(model::launch(each.view(), "caller", {}, {}, [&] { ++ran; }));
        }
        training.step();
        CHECK(ran == enqueued);
      }
      CHECK(training.seen() == expected);
    }
    CHECK(first_of(model::faults()) == "");
  }
}

namespace {

// A stage whose forward passes do what a test says, besides making a message.
struct told_stage {
  std::function<void(zbpp::microbatch, zbpp::pass_context)> does;

  zbpp::flow operator()(zbpp::microbatch mb) {
    zbpp::message const in = co_await mb.recv_activation();
    zbpp::buffer out;
    auto const make = [&](zbpp::pass_context ctx) { out = toy::launched_edge(ctx); };
    co_await zbpp::F([&](zbpp::pass_context ctx) {
      make(ctx);
      does(mb, ctx);
    });
    co_await mb.send_activation(std::move(out));
    zbpp::message const back = co_await mb.recv_gradient();
    co_await zbpp::B(make);
    co_await mb.send_gradient(std::move(out));
    co_await zbpp::W([] {});
  }
};

/// Runs four steps of two stages, the second of which does something in its third forward pass of
/// each step. @return what the step was refused with, and its number
std::string refused_step(std::function<void(zbpp::microbatch, zbpp::pass_context)> const& does) {
  model::reset({.seed = 5});
  std::string found;
  {
    auto const of_one = [&](zbpp::microbatch mb, zbpp::pass_context ctx) {
      if (mb.is_last_stage() && mb.index() == 2) does(mb, ctx);
    };
    std::vector<told_stage> stages(2, {of_one});
    pipeline pipe{row_plan(2, 4), cuda::device{.replay = cuda::replay::step}, stages};
    for (int i = 0; i < 4 && found.empty(); ++i) {
      try {
        pipe.step();
      } catch (zbpp::error const& refused) {
        found = "step " + std::to_string(i) + ": " + refused.what();
      }
    }
  }
  return found + first_of(model::faults()) + first_of(model::leaks());
}

constexpr char const* place = "step 1: rank 1, position 10, stage 1, microbatch 2: ";

}  // namespace

TEST_CASE("what a replay would not repeat is refused, and its pass named", "[cuda]") {
  CHECK(refused_step([](zbpp::microbatch, zbpp::pass_context) {}) == "");
  CHECK(
      refused_step([](zbpp::microbatch mb, zbpp::pass_context) { static_cast<void>(mb.step()); }) ==
      place + std::string("step() is asked while the step is captured, and each replay would take "
                          "this one for it; keep a counter in device memory, and let update() move "
                          "it on"));
  CHECK(
      refused_step([](zbpp::microbatch mb, zbpp::pass_context) { mb.report_loss(1); }) ==
      place + std::string("report_loss() gives a value of the host while the step is captured, and "
                          "no replay would give it again; let a kernel write the loss to "
                          "loss_slot()"));
  auto const spoils =
      place + std::string("a captured step cannot hold what was called here; let it not wait for "
                          "the device, nor make or free device memory, or leave out "
                          "replay::step");
  CHECK(refused_step([](zbpp::microbatch, zbpp::pass_context ctx) {
          cudaStreamSynchronize(cuda::stream_of(ctx));
        }) == spoils);
  CHECK(refused_step([](zbpp::microbatch, zbpp::pass_context) {
          void* taken = nullptr;
          if (cudaMalloc(&taken, 64) == cudaSuccess) cudaFree(taken);
        }) == spoils);
}

TEST_CASE("a call that a capture forbids is told with what would be right", "[cuda]") {
  auto const reports = refused_step(
      [](zbpp::microbatch, zbpp::pass_context ctx) { cuda::stream_of(ctx).synchronize(); });
  INFO(reports);
  CHECK(reports.starts_with(
      place + std::string("CUDA reports cudaErrorStreamCaptureUnsupported (900) at handles.hpp:")));
  CHECK(reports.ends_with(
      "; what a graph captures must not wait for the device, nor make or free device memory, and "
      "streams that it uses besides must be joined"));
  // An arena that grows while a step is captured.
  int steps_so_far = 0;
  auto const grown = refused_step([&](zbpp::microbatch, zbpp::pass_context ctx) {
    if (steps_so_far++ == 1) static_cast<void>(ctx.allocate(1 << 22));
  });
  INFO(grown);
  CHECK(grown.starts_with(
      place + std::string("CUDA reports cudaErrorStreamCaptureUnsupported (900) at memory.hpp:")));
  // A stream of the flow that goes on after the capture.
  std::optional<cuda::stream> side;
  std::optional<cuda::event> made;
  auto const unjoined = refused_step([&](zbpp::microbatch, zbpp::pass_context ctx) {
    if (!side) {
      side.emplace(cuda::stream_priority::usual);
      made.emplace(cuda::event_kind::order);
    } else {
      cuda::stream_of(ctx).record(*made);
      side->view().wait(*made);
    }
  });
  CHECK(unjoined.starts_with(
      "step 1: rank 0: CUDA reports cudaErrorStreamCaptureUnjoined (904) at capture.hpp:"));
}

TEST_CASE("buffers that a flow keeps from step to step are not replayed", "[cuda]") {
  zbpp::buffer kept;
  auto const reports = refused_step([&](zbpp::microbatch, zbpp::pass_context ctx) {
    kept = ctx.allocate(512);  // while it still holds the one of the step before
  });
  CHECK(reports.starts_with(
      "step 1: rank 1: stages hold other buffers after the captured step than before it, and "
      "replays would use the old ones; keep the same buffers in every step, or leave out "
      "replay::step"));
}

TEST_CASE("settings with which the host has a part in each step are refused", "[cuda]") {
  model::reset();
  std::vector<told_stage> stages(2);
  auto const refused = [&](cuda::device backend) {
    backend.replay = cuda::replay::step;
    return refusal([&] { pipeline pipe{row_plan(2, 4), backend, stages}; });
  };
  auto const text = [](char const* label) {
    return std::string("replay is replay::step and ") + label +
           ", which needs the host between passes; leave one of them out";
  };
  CHECK(refused({.run_ahead = 1}) == text("run_ahead is above 0"));
  CHECK(refused({.traces = true}) == text("traces is set"));
  CHECK(refused({.synchronizes = true}) == text("synchronizes is set"));
}

TEST_CASE("stages with an optimizer are refused, and ranks that agree on steps", "[cuda]") {
  using stage = gpu_steps::optimized_stage<toy::basic_passes<toy::launched>>;
  problem const problem(zbpp::placement::linear(2), 4, launched_costs(), 87);
  auto all = toy::make_model(2);
  auto const refused = [&](plan const& planned) {
    model::reset();
    std::vector<stage> stages;
    for (auto& s : all) stages.emplace_back(s, -1);
    cuda::device const backend{.edges = toy::edge_shapes(problem), .replay = cuda::replay::step};
    auto const options = gpu_steps::options(0, agrees_on_steps(planned.program()));
    return refusal([&] { pipeline pipe(planned, backend, stages, options); });
  };
  CHECK(
      refused(zbpp::make_plan(zbpp::zb_h1{}, problem, {.step = zbpp::step_kind::post_validated})) ==
      "replay is replay::step and ranks agree on optimizer steps, which needs the host between "
      "passes; leave one of them out");
  CHECK(
      refused(zbpp::make_plan(zbpp::zb_h1{}, problem)) ==
      "rank 0: a stage has an optimizer(), or training_options are given that the host follows in "
      "every step; with "
      "replay::step let update(ctx) do its work, with its settings in device memory");
  CHECK(first_of(model::leaks()) == "");
}

TEST_CASE("one thread issues what is captured on several devices", "[cuda]") {
  model::reset({.devices = 3});
  std::set<std::thread::id> threads;
  std::vector<int> devices;
  std::vector<told_stage> stages(3, {[&](zbpp::microbatch mb, zbpp::pass_context ctx) {
                                   int current = -1;
                                   cudaGetDevice(&current);
                                   CHECK(current == mb.stage());
                                   CHECK(cuda::device_of(ctx) == mb.stage());
                                   devices.push_back(current);
                                   threads.insert(std::this_thread::get_id());
                                 }});
  {
    pipeline pipe{
        row_plan(3, 4),
        cuda::device{.devices = cuda::one_device_per_rank(3), .replay = cuda::replay::step},
        stages};
    for (int i = 0; i < 4; ++i) pipe.step();
  }
  CHECK(threads == std::set{std::this_thread::get_id()});
  CHECK(devices.size() == 2 * 3 * 4);  // of the steps that are not replayed
  CHECK(first_of(model::faults()) == "");
}

TEST_CASE("a replay has the losses that its kernels write, and no others", "[cuda]") {
  model::reset({.seed = 3});
  int runs = 0;
  std::vector<told_stage> stages(
      2, {[&](zbpp::microbatch mb, zbpp::pass_context ctx) {
        if (!mb.is_last_stage() || mb.index() == 1) return;
        auto* const slot = cuda::loss_slot(mb, ctx);
        bool const writes = mb.index() != 2;
        cuda::check(model::launch(
            cuda::stream_of(ctx), "loss", {}, {{slot, sizeof(float)}}, [&runs, slot, writes] {
              if (writes) *slot = static_cast<float>(runs++);
            }));
      }});
  pipeline pipe{row_plan(2, 4), cuda::device{.replay = cuda::replay::step}, stages};
  for (int i = 0; i < 5; ++i) {
    auto const& losses = pipe.step().losses;
    CHECK(losses[0] == 2 * i);
    CHECK(std::isnan(losses[1]));  // nobody reports it
    CHECK(std::isnan(losses[2]));  // nobody writes it
    CHECK(losses[3] == 2 * i + 1);
  }
  CHECK(first_of(model::faults()) == "");
}

}  // namespace test_cuda_replay
