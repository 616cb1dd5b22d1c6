// SPDX-License-Identifier: Apache-2.0
//
// A step in steady state takes nothing from the heap. Its own executable, since it replaces the
// global operator new.
#include <zbpp/optim/adamw.hpp>
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/adaptive_loop.hpp>
#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/count_allocations.hpp>
#include <support/group_suite.hpp>
#include <support/pass_order.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_objects.hpp>

namespace test_no_allocation {

using namespace zbpp;
using namespace zbpp::test;

namespace {

stage_costs toy_costs() {
  auto costs = uneven_costs();
  costs.edge = toy::parcel_edge;
  return costs;
}

template <class Backend, class Stages>
void check_steps(plan const& planned, Backend backend, Stages& stages) {
  pipeline pipe{planned, backend, stages};
  pipe.step();
  pipe.evaluate();
  CHECK(count_allocations([&] { pipe.step(); }) == 0);
  CHECK(count_allocations([&] { pipe.evaluate(); }) == 0);
  std::size_t heard = 0;
  auto const hear = [&](evaluation_output const& out) { heard += out.message.size() + 1; };
  CHECK(count_allocations([&] { pipe.evaluate(hear); }) == 0);
  CHECK(heard > 0);
  CHECK(count_allocations([&] {
          pipe.step();
          pipe.evaluate();
          pipe.evaluate();
          pipe.step();
        }) == 0);
}

template <class Backend>
void check_plan(plan const& planned, Backend backend) {
  auto all = toy::make_model(planned.problem().stages());
  std::vector<toy::hand_written> flows(all.begin(), all.end());
  check_steps(planned, backend, flows);
  std::vector<toy::passes> objects(all.begin(), all.end());
  std::vector<as_flow<toy::passes>> adapted(objects.begin(), objects.end());
  check_steps(planned, backend, adapted);
  std::vector<toy::packing_passes> packing(all.begin(), all.end());
  std::vector<as_flow<toy::packing_passes>> packed(packing.begin(), packing.end());
  check_steps(planned, backend, packed);
}

template <class Backend>
void check_policies(Backend backend) {
  for (int p : {1, 2, 4})
    for (auto const& placement : placements_to_run(p))
      for (int m : microbatches_to_run(p))
        on_plans(problem(placement, m, toy_costs(), 87), {}, [&](plan const& planned) {
          check_plan(planned, backend);
        });
}

// A stage whose gradients are too large in every third step.
class optimized_stage {
 public:
  explicit optimized_stage(bool is_tied = false)
      : own_(std::vector<optim::layer>{{weights_, gradients_, is_tied}}) {}
  // The optimizer refers to the arrays of this very object.
  optimized_stage(optimized_stage const& other) : optimized_stage(other.own_.tied_weights() > 0) {}
  optimized_stage& operator=(optimized_stage const&) = delete;

  struct passes {
    std::array<float, 4>* gradients;
    static message forward(message const&, microbatch, pass_context ctx) {
      return ctx.allocate_edge(toy::edge);
    }
    static message backward(message const&, microbatch, pass_context ctx) {
      return ctx.allocate_edge(toy::edge);
    }
    void weight(microbatch mb) const { (*gradients)[1] += mb.step() % 3 == 0 ? 10.0F : 0.1F; }
  };
  flow operator()(microbatch mb) { return in_order(passes{&gradients_}, mb); }
  optim::adamw& optimizer() { return own_; }

 private:
  std::array<float, 4> weights_{};
  std::array<float, 4> gradients_{};
  optim::adamw own_;
};

}  // namespace

TEST_CASE("the counter counts", "[no-allocation]") {
  std::unique_ptr<int> kept;
  CHECK(count_allocations([&] { kept = std::make_unique<int>(1); }) == 1);
  CHECK(count_allocations([] {}) == 0);
}

TEST_CASE("a step under virtual time allocates nothing", "[no-allocation][long]") {
  check_policies(virtual_time{});
}

TEST_CASE("a step on one thread per rank allocates nothing", "[no-allocation][long]") {
  check_policies(threads{});
}

TEST_CASE("a step where ranks share threads allocates nothing", "[no-allocation][long]") {
  check_policies(threads{.count = 2, .spins = 10});
}

TEST_CASE("a record of messages allocates nothing once the pipeline is made", "[no-allocation]") {
  for (auto const& placement : placements_to_run(3)) {
    on_plans(problem(placement, 6, toy_costs(), 87), {}, [&](plan const& planned) {
      check_plan(planned, virtual_time{.records_messages = true});
      check_plan(planned, threads{.count = 2, .records_messages = true});
    });
  }
}

TEST_CASE("steps that are validated afterwards and amended allocate nothing", "[no-allocation]") {
  for (auto const& placement : {placement::linear(3), placement::v_shape(3)}) {
    problem const problem(placement, 5, toy_costs(), 87);
    auto const order = placement.is_linear() ? zb_h2{}(problem) : zb_v{}(problem);
    for (auto kind : {step_kind::synchronous, step_kind::post_validated}) {
      std::vector<optimized_stage> stages(static_cast<std::size_t>(placement.stages()));
      pipeline pipe(
          make_plan("tested", order, problem, {.step = kind}),
          threads{.records_messages = kind == step_kind::post_validated},
          stages,
          {.clip = 1, .window = {.most_amended = 64}});
      int amended = 0;
      auto const note = [&](step_result const& step) { amended += step.update.is_amended ? 1 : 0; };
      pipe.run(7, note);
      CHECK(count_allocations([&] { pipe.run(20, note); }) == 0);
      CHECK((amended > 0) == (kind == step_kind::post_validated));
    }
  }
}

TEST_CASE(
    "steps that some stages or all take without agreement allocate nothing", "[no-allocation]") {
  problem const problem(placement::linear(3), 5, toy_costs(), 87);
  auto const order = zb_h2{}(problem);
  for (lower_options const& options :
       {lower_options{.step = step_kind::synchronous, .at_once = {0, 2}},
        lower_options{.step = step_kind::synchronous},
        lower_options{.step = step_kind::post_validated}}) {
    std::vector<optimized_stage> stages(3);
    pipeline pipe(
        make_plan("tested", order, problem, options),
        threads{},
        stages,
        {.clip = 100, .window = {}, .agreement = {.every = options.at_once.empty() ? 3 : 1}});
    int unagreed = 0;
    auto const note = [&](step_result const& step) { unagreed += step.update.is_agreed ? 0 : 1; };
    pipe.run(30, note);  // ranks agree on every third step alone
    CHECK(count_allocations([&] { pipe.run(20, note); }) == 0);
    CHECK((unagreed > 0) == options.at_once.empty());
  }
}

TEST_CASE("W that run while ranks wait allocate nothing", "[no-allocation]") {
  problem const problem(placement::v_shape(3), 7, toy_costs(), 87);
  auto const planned = make_plan(zb_v{}, problem);
  auto all = toy::make_model(6);
  std::vector<toy::hand_written> stages(all.begin(), all.end());
  training_options const options{.on_stall = {.runs_w = true, .overrun = 1e9}};
  auto const check = [&](auto backend) {
    pipeline pipe{planned, backend, stages, options};
    for (int i = 0; i < 5; ++i) static_cast<void>(pipe.step());
    CHECK(count_allocations([&] {
            for (int i = 0; i < 5; ++i) static_cast<void>(pipe.step());
          }) == 0);
  };
  check(virtual_time{{.pass_time = [](int rank, pass const&, ticks stated) {
    return rank == 1 ? 3 * stated : stated;
  }}});
  check(threads{});
}

TEST_CASE(
    "a pipeline that adapts allocates when it takes medians, and else nothing", "[no-allocation]") {
  constexpr int window = 5;
  problem const problem(placement::linear(3), 7, toy_costs(), 87);
  auto all = toy::make_model(3);
  std::vector<toy::hand_written> stages(all.begin(), all.end());
  adaptive_loop pipe{
      make_plan(zb_h1{}, problem),
      virtual_time{},
      stages,
      replan_settings{.first_steps = 0, .window = window}};
  for (int i = 0; i < 2 * window; ++i) static_cast<void>(pipe.step());
  for (int i = 1; i <= 3 * window; ++i) {
    auto const taken = count_allocations([&] { static_cast<void>(pipe.step()); });
    CHECK((taken > 0) == (i % window == 0));
  }
}

TEST_CASE("sums of tied gradients allocate nothing after some steps", "[no-allocation]") {
  auto costs = toy_costs();
  costs.tied = 4 * sizeof(float);
  problem const problem(placement::linear(3), 5, costs, 87);
  for (auto kind : kinds_of_steps) {
    std::vector<optimized_stage> stages(3, optimized_stage(true));
    pipeline pipe(make_plan(zb_h2{}, problem, {.step = kind}), threads{}, stages);
    pipe.run(30);
    CHECK(count_allocations([&] { pipe.run(20); }) == 0);
  }
}

TEST_CASE("a step that recomputes allocates nothing", "[no-allocation]") {
  for (auto const& placement : placements_to_run(3))
    on_plans(
        problem(placement, 6, toy_costs(), 87),
        {.fused = false, .recomputed = true},
        [&](plan const& planned) { check_plan(planned, virtual_time{}); });
}

TEST_CASE("receiving early allocates nothing", "[no-allocation]") {
  on_plans(
      problem(placement::v_shape(3), 7, toy_costs(), 87),
      {.receive_ahead = 2},
      [&](plan const& planned) { check_plan(planned, threads{}); });
}

namespace {

problem const& checked_problem() {
  static auto const stated = checked::make_problem(placement::v_shape(2), 4, 87, {});
  return stated;
}

// Counts the allocations of eight steps of all pipelines along an axis.
std::int64_t allocations_along(grid_axis axis, int pipelines, plan const& planned) {
  bool const is_data = axis == grid_axis::data;
  in_process_grid whole(
      {.pipeline = 2, .data = is_data ? pipelines : 1, .tensor = is_data ? 1 : pipelines});
  std::int64_t before = 0;
  std::int64_t behind = 0;
  whole.run([&](grid_place const& at) {
    checked::model own({.stages = 4});
    // All have the same weights, which members of a tensor group would not have.
    pipeline each(planned, threads{.place = at}, own.stages(), {.compares_weights = is_data});
    auto& others = at.grid_of(0)->along(axis);
    for (int step = 0; step < 8; ++step) each.step();
    for (int i = 0; i < 3; ++i) others.barrier();
    if (others.place() == 0) before = allocations.load();
    others.barrier();
    for (int step = 0; step < 8; ++step) each.step();
    others.barrier();
    if (others.place() == 0) behind = allocations.load();
    others.barrier();
  });
  return behind - before;
}

// Counts those of one pipeline, whose flows take some themselves.
std::int64_t allocations_alone(step_kind kind) {
  checked::model single({.stages = 4});
  pipeline plain(make_plan(zb_v{}, checked_problem(), {.step = kind}), threads{}, single.stages());
  for (int step = 0; step < 8; ++step) plain.step();
  return count_allocations([&] {
    for (int step = 0; step < 8; ++step) plain.step();
  });
}

}  // namespace

TEST_CASE("adding gradients up over replicas allocates no more", "[no-allocation]") {
  for (int const replicas : {2, 3})
    for (auto const kind : {step_kind::unchecked, step_kind::post_validated}) {
      auto const planned =
          make_plan(zb_v{}, with_replicas(checked_problem(), {.count = replicas}), {.step = kind});
      CHECK(
          allocations_along(grid_axis::data, replicas, planned) ==
          replicas * allocations_alone(kind));
    }
}

TEST_CASE("agreeing on steps within a tensor group allocates no more", "[no-allocation]") {
  for (int const members : {2, 3})
    for (auto const kind : {step_kind::synchronous, step_kind::post_validated})
      CHECK(
          allocations_along(
              grid_axis::tensor, members, make_plan(zb_v{}, checked_problem(), {.step = kind})) ==
          members * allocations_alone(kind));
}

TEST_CASE(
    "collective calls between threads allocate nothing once they were made", "[no-allocation]") {
  auto const run_members = [](int size, auto work) {
    in_process_grid members({.data = 1, .tensor = size});
    members.run([&](grid_place const& at) { work(at.grid_of(0)->tensor()); });
  };
  for (int const size : {2, 3})
    CHECK(allocations_of_calls(run_members, size, 50, [] { return allocations.load(); }) == 0);
}

}  // namespace test_no_allocation
