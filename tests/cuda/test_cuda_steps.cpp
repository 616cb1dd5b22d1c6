// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps that ranks on GPUs agree on: the norm is read from the device, steps follow one
// another without a stop, and the bits are those of one process, whatever a GPU runs first.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/cuda/device.hpp>
#include <zbpp/cuda/error.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/cuda_steps.hpp>
#include <support/cuda_training.hpp>
#include <support/nested.hpp>
#include <support/plan_grid.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <atomic>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace test_cuda_steps {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
using zbpp::plan;
using zbpp::problem;
using zbpp::step_kind;

namespace {

// Uses all memory that is free when a pass ends, so that what a message gets was in use just now.
using stage = gpu_steps::optimized_stage<toy::launched_passes_with_scratch>;

// Trains in both kinds of steps on one device, on one each, and on one for two ranks.
void check_kinds(
    plan const& late, plan const& waiting, std::size_t turn, std::uint64_t& seed, int& amended) {
  auto const ranks = late.problem().ranks();
  for (auto const& with : gpu_steps::troubles_in_turn(late, turn)) {
    auto const expected = gpu_steps::train_alone(late, with);
    for (int const together : {ranks, 1, 2})
      for (auto const* const planned : {&late, &waiting}) {
        auto const devices = (ranks + together - 1) / together;
        model::reset({.seed = ++seed, .devices = devices, .hosts = devices});
        zbpp::cuda::device backend{.traces = seed % 3 == 0};
        for (int r = 0; r < ranks; ++r) backend.devices.push_back({.device = r / together});
        INFO("interleaving " << seed << ", " << devices << " devices, clips at " << with.clip);
        auto const found = gpu_steps::train_on<stage>(*planned, with, backend);
        gpu_steps::check(found, expected, *planned, with);
        amended += found.amended;
      }
  }
}

}  // namespace

TEST_CASE(
    "ranks on GPUs agree on steps with the bits of one process, whatever runs first",
    "[cuda][long]") {
  auto seed = run_seed();
  int amended = 0;
  std::size_t turn = 0;
  gpu_steps::for_each_case([&](zbpp::any_policy const& policy, problem const& problem) {
    check_kinds(
        make_plan(policy, problem, {.step = step_kind::post_validated}),
        make_plan(policy, problem, {.step = step_kind::synchronous}),
        ++turn,
        seed,
        amended);
  });
  CHECK(amended > thinned(100, 20));
}

TEST_CASE("ranks on GPUs step without agreement with the bits of a plain loop", "[cuda][long]") {
  auto seed = run_seed() + 900;
  gpu_steps::for_each_case_without_agreement([&](plan const& planned, auto const& with) {
    auto const ranks = planned.problem().ranks();
    auto const expected = gpu_steps::train_alone(planned, with);
    for (int const together : {ranks, 1}) {
      auto const devices = ranks / together;
      model::reset({.seed = ++seed, .devices = devices, .hosts = devices});
      zbpp::cuda::device backend{.traces = seed % 3 == 0};
      for (int r = 0; r < ranks; ++r) backend.devices.push_back({.device = r / together});
      INFO("interleaving " << seed << ", " << devices << " devices, clips at " << with.clip);
      gpu_steps::check(gpu_steps::train_on<stage>(planned, with, backend), expected, planned, with);
    }
  });
}

TEST_CASE("messages that are consumed out of their order do not stop a run of steps", "[cuda]") {
  problem const problem(zbpp::placement::linear(2), 2, launched_costs(), 87);
  using enum zbpp::pass_kind;
  zbpp::rows<zbpp::pass> order;
  for (auto const& p : {std::pair(forward, 0), {forward, 1}, {backward_input, 1}})
    order.push({p.first, 0, p.second});
  for (auto const& p : {std::pair(backward_input, 0), {backward_weight, 0}, {backward_weight, 1}})
    order.push({p.first, 0, p.second});
  order.end_row();
  for (auto const& p : {std::pair(forward, 1), {forward, 0}, {backward_input, 1}})
    order.push({p.first, 1, p.second});
  for (auto const& p : {std::pair(backward_input, 0), {backward_weight, 0}, {backward_weight, 1}})
    order.push({p.first, 1, p.second});
  order.end_row();
  auto seed = run_seed();
  for (auto const kind : {step_kind::synchronous, step_kind::post_validated}) {
    auto const planned = zbpp::make_plan(
        "out of order", zbpp::schedule(problem.placement(), 2, order), problem, {.step = kind});
    for (auto const& with : gpu_steps::troubles_of(planned)) {
      model::reset({.seed = ++seed});
      gpu_steps::check(
          gpu_steps::train_on<stage>(planned, with, zbpp::cuda::device{}),
          gpu_steps::train_alone(planned, with),
          planned,
          with);
    }
  }
}

TEST_CASE("a run on GPUs that is asked to stop ends with the weights of whole steps", "[cuda]") {
  problem const problem(zbpp::placement::linear(3), 6, launched_costs(), 87);
  auto seed = run_seed() + 500;
  for (auto const kind :
       {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
    auto const planned = make_plan(zbpp::zb_h1{}, problem, {.step = kind});
    for (std::int64_t asked : {1, 2, 3}) {
      model::reset({.seed = ++seed});
      auto all = toy::make_model(3);
      std::vector<stage> stages;
      for (auto& s : all) stages.emplace_back(s, -1);
      zbpp::pipeline pipe(
          planned,
          zbpp::cuda::device{.edges = toy::edge_shapes(problem)},
          stages,
          gpu_steps::options(0, kind != step_kind::unchecked));
      pipe.run(gpu_steps::count, [&](zbpp::step_result const&) {
        return pipe.steps() == asked ? zbpp::after_step::stop : zbpp::after_step::go_on;
      });
      CHECK(pipe.steps() >= asked);
      CHECK(pipe.steps() <= asked + 2);
      for (bool goes_on : {false, true}) {
        if (goes_on) pipe.run(gpu_steps::count - pipe.steps());
        auto const expected =
            gpu_steps::train_alone(planned, {}, static_cast<int>(pipe.steps())).given;
        bool is_same = true;
        for (std::size_t s = 0; s < all.size(); ++s)
          is_same = is_same && gpu_steps::has_same_weights(all[s], expected[s]);
        CHECK(is_same);
      }
      CHECK(first_of(model::faults()) == "");
    }
  }
}

TEST_CASE("a failure at any flow leaves the weights of whole steps on GPUs", "[cuda]") {
  problem const problem(zbpp::placement::linear(3), 6, launched_costs(), 87);
  auto const planned = make_plan(zbpp::zb_h1{}, problem, {.step = step_kind::post_validated});
  constexpr int flows_of_step = 3 * 6;
  std::set<std::int64_t> ends;
  for (int failing = 0; failing < 3 * flows_of_step; failing += thinned(1, 5)) {
    INFO("the flow that fails is number " << failing);
    bool const has_devices = failing % 2 == 1;
    model::reset({.seed = 5, .devices = 3, .hosts = has_devices ? 3 : 1});
    zbpp::cuda::device backend{.edges = toy::edge_shapes(problem)};
    for (int r = 0; has_devices && r < 3; ++r) backend.devices.push_back({.device = r});
    auto all = toy::make_model(3);
    std::vector<stage> stages;
    for (auto& s : all) stages.emplace_back(s, -1);
    std::atomic<int> flows = 0;
    std::vector<gpu_steps::doomed_stage<stage>> doomed;
    for (auto& s : stages) doomed.push_back({&s, &flows, failing});
    zbpp::pipeline pipe(planned, backend, doomed, gpu_steps::options(0));
    CHECK(zbpp::test::throws_nested<gpu_steps::expected_failure>(
        [&] { pipe.run(gpu_steps::count); }));
    ends.insert(pipe.steps());
    auto const expected = gpu_steps::train_alone(planned, {}, static_cast<int>(pipe.steps()));
    bool is_same = true;
    for (std::size_t s = 0; s < all.size(); ++s)
      is_same = is_same && gpu_steps::has_same_weights(all[s], expected.given[s]);
    CHECK(is_same);
    CHECK(first_of(model::faults()) == "");
  }
  CHECK(ends == std::set<std::int64_t>{0, 1, 2});
}

TEST_CASE("a kernel's fault ends a run of steps with CUDA's error", "[cuda]") {
  problem const problem(zbpp::placement::linear(2), 3, launched_costs(), 87);
  auto const planned = make_plan(zbpp::zb_h1{}, problem, {.step = step_kind::post_validated});
  for (std::uint64_t kernel = 0; kernel < 400; kernel += thinned(7U, 31U)) {
    INFO("kernel " << kernel);
    model::reset({.seed = 5});
    auto all = toy::make_model(2);
    std::vector<stage> stages;
    for (auto& s : all) stages.emplace_back(s, -1);
    zbpp::pipeline pipe(
        planned,
        zbpp::cuda::device{.edges = toy::edge_shapes(problem)},
        stages,
        gpu_steps::options(0));
    model::kernel_fault(kernel);
    CHECK_THROWS_AS(pipe.run(gpu_steps::count), zbpp::cuda::cuda_error);
    static_cast<void>(model::take_faults());
  }
}

}  // namespace test_cuda_steps
