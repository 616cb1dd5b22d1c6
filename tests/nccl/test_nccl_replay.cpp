// SPDX-License-Identifier: Apache-2.0
//
// Steps over NCCL that every rank captures as one graph and replays, on the model of CUDA and NCCL:
// they have the bits of steps that are issued, in whatever order a GPU takes the nodes of a graph
// and whatever queues it puts them into.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_replay.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/needless_calls.hpp>
#include <support/padded_toy.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace test_nccl_replay {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
using zbpp::channel_layout;
using zbpp::plan;
using zbpp::problem;

namespace {

constexpr int steps = 4;  // issued, captured, replayed twice

template <class Passes>
using training = toy::counted_training<toy::padded_passes<Passes>, nccl_in_one_process>;

/// Captures and replays. @return what was wrong
template <class Passes = toy::basic_passes<toy::counted>>
std::string trouble_of(plan const& planned, toy::history const& expected, model::options machine) {
  machine.devices = planned.problem().ranks();
  return trouble_in(machine, [&] {
    std::string trouble;
    nccl_in_one_process backend;
    backend.replays = true;
    training<Passes> trains(planned, backend);
    for (int i = 0; i < steps; ++i) {
      model::start_counting();
      trains.step();
      auto const launches = static_cast<std::uint64_t>(i > 0 ? machine.devices : 0);
      if (model::count("cudaGraphLaunch") != launches) trouble += "a step is no launch;";
      if (i > 1 && model::count("launch") + model::count("ncclGroupEnd") > 0)
        trouble += "the host issues in a replay;";
    }
    if (!(trains.seen() == expected)) trouble += "wrong bits;";
    return trouble;
  });
}

plan small_plan(int ranks, int microbatches) {
  return row_plan(ranks, microbatches, {.layout = channel_layout::one_per_rank});
}

}  // namespace

TEST_CASE("replayed steps over NCCL have the bits of one process", "[nccl][long]") {
  std::uint64_t seed = run_seed();
  for (int p : {1, 2, 3, 4})
    for (auto const& placement : placements_to_run(p))
      for_each_plan_of(
          problem(placement, p == 2 ? 1 : p + 2, launched_costs(), 87),
          {.recomputed = p == 2, .layout = channel_layout::one_per_rank},
          [&](std::string const& name, plan const& planned) {
            INFO(name << ", interleaving " << seed + 1);
            CHECK(
                trouble_of(planned, toy::counted_reference(planned, steps), {.seed = ++seed}) ==
                "");
          });
}

TEST_CASE("so have they on few queues, however branches of a graph are mapped", "[nccl][long]") {
  std::uint64_t seed = run_seed() + 1000;
  for (auto const& placement : placements_to_run(3))
    for_each_plan_of(
        problem(placement, 4, launched_costs(), 87),
        {.fused = false, .layout = channel_layout::one_per_rank},
        [&](std::string const& name, plan const& planned) {
          auto const expected = toy::counted_reference(planned, steps);
          for (auto const mapping :
               {model::queue_mapping::one,
                model::queue_mapping::in_turn,
                model::queue_mapping::random})
            for (int queues : thinned<std::vector<int>>({2, 8}, {2})) {
              INFO(name << ", " << queues << " queues, interleaving " << seed + 1);
              CHECK(
                  trouble_of<toy::passes_with_scratch<toy::counted>>(
                      planned,
                      expected,
                      {.seed = ++seed, .connections = queues, .mapping = mapping}) == "");
            }
        });
}

TEST_CASE("and where messages hold all multiprocessors but one", "[nccl]") {
  auto const planned = small_plan(3, 5);
  auto const expected = toy::counted_reference(planned, steps);
  std::uint64_t seed = run_seed() + 2000;
  for (int i = 0; i < thinned(20, 3); ++i) {
    INFO("interleaving " << seed + 1);
    auto const order = i % 2 == 0 ? model::mode::lazy : model::mode::eager;
    CHECK(trouble_of(planned, expected, {.seed = ++seed, .order = order, .sm_count = 5}) == "");
  }
}

TEST_CASE("the host's part in a replayed step over NCCL does not grow with it", "[nccl]") {
  std::vector<std::string> calls;
  for (int m : {3, 12, 48}) {
    INFO(m << " microbatches");
    model::reset({.seed = 7, .devices = 3, .launch_depth = 1 << 20});
    nccl_in_one_process backend;
    backend.replays = true;
    training<toy::basic_passes<toy::counted>> trains(small_plan(3, m), backend);
    for (int i = 0; i < 2; ++i) trains.step();
    model::start_counting();
    trains.pipe().step();
    std::vector<std::string> made;
    for (auto const& call : model::calls())
      if (call.function != "cudaSetDevice" && call.function != "cudaGetDevice")
        made.emplace_back(call.function);
    if (calls.empty()) calls = made;
    CHECK(made == calls);
  }
  REQUIRE(calls.size() > 6);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(calls[2 * rank] == "cudaGraphLaunch");
    CHECK(calls[2 * rank + 1] == "cudaEventRecord");
  }
}

// Messages stand one behind the other, so a wait may follow from another one.
TEST_CASE("a message, or most waits, that a captured step leaves out are missed", "[nccl]") {
  auto const planned = small_plan(3, 4);
  auto const expected = toy::counted_reference(planned, 3);
  auto const is_clean = [&](std::string_view function, std::uint64_t index) {
    model::reset({.seed = 9, .devices = 3});
    bool is_same = false;
    try {
      nccl_in_one_process backend;
      backend.replays = true;
      training<toy::passes_with_scratch<toy::counted>> trains(planned, backend);
      trains.step();
      model::start_counting();
      if (!function.empty()) model::skip(function, index);
      trains.step();
      trains.step();
      is_same = trains.seen() == expected;
    } catch (zbpp::error const&) {
    }
    return is_same && model::faults().empty();
  };
  CHECK(needless_calls({"ncclSend", "ncclRecv", "cudaGraphLaunch"}, is_clean) == "");
  for (std::string_view const function : {"cudaStreamWaitEvent", "cudaEventRecord"}) {
    REQUIRE(is_clean(std::string_view(), 0));
    auto const count = model::count(function);
    std::uint64_t missed = 0;
    std::uint64_t tried = 0;
    for (std::uint64_t i = 0; i < count; i += thinned(1U, 7U), ++tried)
      missed += is_clean(function, i) ? 0 : 1;
    INFO(function << ": " << missed << " of " << tried);
    CHECK(3 * missed > 2 * tried);
  }
}

TEST_CASE("evaluations between replays over NCCL change nothing", "[nccl]") {
  auto const planned = small_plan(3, 5);
  auto const expected = toy::counted_reference(planned, 8);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    INFO("interleaving " << seed);
    checked_gpus const gpus({.seed = seed, .devices = 3});
    nccl_in_one_process backend;
    backend.replays = true;
    training<toy::basic_passes<toy::counted>> trains(planned, backend);
    std::vector<zbpp::buffer> kept;
    for (int i = 0; i < 8; ++i) {
      model::start_counting();
      trains.step();
      // What one rank keeps has all ranks issue the fourth step and capture the fifth; when it
      // lets go, the seventh is a replay, until ranks agree again.
      auto const captures = model::count("cudaGraphInstantiate");
      auto const launches = model::count("cudaGraphLaunch");
      CHECK(captures == (i == 1 || i == 4 || i == 7 ? 3 : 0));
      CHECK(launches == (i == 0 || i == 3 || i == 6 ? 0 : 3));
      if (i == 5) kept.clear();
      trains.pipe().evaluate([&](zbpp::evaluation_output const& out) {
        if (i == 2) kept.push_back(out.message[0]);
      });
      for (auto const& each : kept)
        model::uninitialise(each.data(), each.size());  // whoever reads it is told
    }
    CHECK(trains.seen() == expected);
  }
}

TEST_CASE("a buffer that is let go between replays does not stop them", "[nccl]") {
  auto const planned = small_plan(3, 5);
  auto const expected = toy::counted_reference(planned, 8);
  model::reset({.seed = 3, .devices = 3});
  {
    nccl_in_one_process backend;
    backend.replays = true;
    training<toy::basic_passes<toy::counted>> trains(planned, backend);
    std::vector<zbpp::buffer> kept;
    for (int i = 0; i < 8; ++i) {
      if (i == 2)
        trains.pipe().evaluate(
            [&](zbpp::evaluation_output const& out) { kept.push_back(out.message[0]); });
      if (i == 5) kept.clear();
      model::start_counting();
      trains.step();
      CHECK(model::count("cudaGraphLaunch") == (i == 0 || i == 2 ? 0 : 3));
    }
    CHECK(trains.seen() == expected);
  }
  CHECK(first_of(model::faults()) == "");
}

}  // namespace test_nccl_replay
