// SPDX-License-Identifier: Apache-2.0
//
// A step in steady state takes nothing from the heap. Its own executable, since it replaces the
// global operator new.
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/count_allocations.hpp>
#include <support/plan_grid.hpp>
#include <support/toy_mlp.hpp>

#include <memory>
#include <string>
#include <vector>

namespace test_no_allocation {

using namespace zbpp;
using test::count_allocations;

namespace {

stage_costs toy_costs() {
  auto costs = test::uneven_costs();
  costs.edge = test::toy::edge;
  return costs;
}

template <class Backend, class Stages>
void check_steps(plan const& planned, Backend backend, Stages& stages) {
  pipeline pipe{planned, backend, stages};
  pipe.step();
  pipe.evaluate();
  CHECK(count_allocations([&] { pipe.step(); }) == 0);
  CHECK(count_allocations([&] { pipe.evaluate(); }) == 0);
  CHECK(count_allocations([&] {
          pipe.step();
          pipe.evaluate();
          pipe.evaluate();
          pipe.step();
        }) == 0);
}

template <class Backend>
void check_plan(std::string const& name, plan const& planned, Backend backend) {
  INFO(name);
  auto all = test::toy::make_model(planned.problem().stages());
  std::vector<test::toy::hand_written> flows(all.begin(), all.end());
  check_steps(planned, backend, flows);
  std::vector<test::toy::passes> objects(all.begin(), all.end());
  std::vector<as_flow<test::toy::passes>> adapted(objects.begin(), objects.end());
  check_steps(planned, backend, adapted);
}

template <class Backend>
void check_policies(Backend backend) {
  for (int p : {1, 2, 4})
    for (auto const& where : test::placements_to_run(p))
      for (int m : test::microbatches_to_run(p))
        test::for_each_plan_of(
            problem(where, m, toy_costs(), 87),
            {},
            [&](std::string const& name, plan const& planned) {
              check_plan(name, planned, backend);
            });
}

}  // namespace

TEST_CASE("the counter counts", "[no-allocation]") {
  std::unique_ptr<int> kept;
  CHECK(count_allocations([&] { kept = std::make_unique<int>(1); }) == 1);
  CHECK(count_allocations([] {}) == 0);
}

TEST_CASE("a step under virtual time allocates nothing", "[no-allocation]") {
  check_policies(virtual_time{});
}

TEST_CASE("a step on one thread per rank allocates nothing", "[no-allocation]") {
  check_policies(threads{});
}

TEST_CASE("a step where ranks share threads allocates nothing", "[no-allocation]") {
  check_policies(threads{.count = 2, .spins = 10});
}

TEST_CASE("a step that recomputes allocates nothing", "[no-allocation]") {
  for (auto const& where : test::placements_to_run(3))
    test::for_each_plan_of(
        problem(where, 6, toy_costs(), 87),
        {.fused = false, .recomputed = true},
        [&](std::string const& name, plan const& planned) {
          check_plan(name, planned, virtual_time{});
        });
}

TEST_CASE("receiving early allocates nothing", "[no-allocation]") {
  test::for_each_plan_of(
      problem(placement::v_shape(3), 7, toy_costs(), 87),
      {.receive_ahead = 2},
      [&](std::string const& name, plan const& planned) { check_plan(name, planned, threads{}); });
}

}  // namespace test_no_allocation
