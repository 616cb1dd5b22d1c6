// SPDX-License-Identifier: Apache-2.0
//
// The claim of the library: whatever the policy and the backend, losses, gradients and weights are
// those of one process, to the bit.
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/plan_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_objects.hpp>
#include <support/toy_reference.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace test_bit_equality {

using namespace zbpp::test;
using zbpp::pipeline;
using zbpp::plan;
using zbpp::threads;
using zbpp::virtual_time;
using zbpp::test::toy::history;
using zbpp::test::toy::is_same;
using zbpp::test::toy::train;
using zbpp::test::toy::train_reference;

namespace {

template <class Backend, class Stages>
history train_pipeline(plan const& planned, Backend backend, toy::model& all, Stages& stages) {
  pipeline pipe{planned, backend, stages};
  return train(all, [&](int) {
    auto const evaluated = pipe.evaluate().losses;  // of the same batches, since no step was made
    auto const& losses = pipe.step().losses;
    if (!is_same(evaluated, losses)) FAIL("evaluate() gives other losses than step()");
    return losses;
  });
}

template <class Backend>
history train_by_hand(plan const& planned, Backend backend) {
  auto all = toy::make_model(planned.problem().stages());
  std::vector<toy::hand_written> stages(all.begin(), all.end());
  return train_pipeline(planned, backend, all, stages);
}

template <class Passes = toy::passes, class Backend>
history train_as_flow(plan const& planned, Backend backend) {
  auto all = toy::make_model(planned.problem().stages());
  std::vector<Passes> objects(all.begin(), all.end());
  std::vector<zbpp::as_flow<Passes>> stages(objects.begin(), objects.end());
  return train_pipeline(planned, backend, all, stages);
}

// Checks a plan on few or on all backends.
void check(std::string const& name, plan const& planned) {
  INFO(name);
  auto const expected = train_reference(planned);
  CHECK(train_by_hand(planned, virtual_time{}) == expected);
  CHECK(train_by_hand(planned, threads{}) == expected);
  CHECK(train_as_flow(planned, virtual_time{}) == expected);
  CHECK(train_as_flow(planned, threads{.count = 2}) == expected);
  CHECK(train_as_flow<toy::packing_passes>(planned, virtual_time{}) == expected);
  CHECK(train_as_flow<toy::packing_passes>(planned, threads{}) == expected);
  CHECK(toy::parcel::alive == 0);
}

zbpp::stage_costs toy_costs() {
  auto costs = uneven_costs();
  costs.edge = toy::parcel_edge;
  return costs;
}

}  // namespace

TEST_CASE("every policy gives the bits of one process", "[bit-equality]") {
  auto const p =
      GENERATE(from_range(thinned<std::vector<int>>({1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4})));
  for (auto const& where : placements_to_run(p))
    for (int m : microbatches_to_run(p))
      for_each_plan_of(
          zbpp::problem(where, m, toy_costs(), 87),
          {},
          [](std::string const& name, plan const& planned) { check(name, planned); });
}

TEST_CASE("recomputing changes no bit", "[bit-equality]") {
  auto const p = GENERATE(1, 2, 4);
  for (auto const& where : placements_to_run(p))
    for_each_plan_of(
        zbpp::problem(where, 2 * p, toy_costs(), 87),
        {.fused = false, .recomputed = true},
        [](std::string const& name, plan const& planned) { check(name, planned); });
}

TEST_CASE("pairs change no bit", "[bit-equality]") {
  auto const p = GENERATE(2, 3);
  std::ptrdiff_t pairs = 0;
  for (auto const& where : placements_to_run(p)) {
    ZBPP_SEEDED(random, p);
    zbpp::problem const what(where, 2 * p + 1, toy_costs(), 87);
    for_each_plan_of(what, {.recomputed = true}, [&](std::string const& name, plan const& plain) {
      check(name, paired_plan(plain, random, pairs));
    });
  }
  CHECK(pairs > 0);
}

TEST_CASE("it does not matter how many threads the ranks share", "[bit-equality]") {
  auto const count = GENERATE(1, 2, 3, 4, 7);
  for_each_plan_of(
      zbpp::problem(zbpp::placement::v_shape(4), 9, toy_costs(), 87),
      {},
      [&](std::string const& name, plan const& planned) {
        INFO(name << ", " << count << " threads");
        auto const expected = train_reference(planned);
        CHECK(train_by_hand(planned, threads{.count = count}) == expected);
        CHECK(train_as_flow(planned, threads{.count = count, .spins = 50}) == expected);
        CHECK(
            train_by_hand(planned, threads{.count = count, .emulates_transfers = true}) ==
            expected);
      });
}

TEST_CASE("receives that are opened early change no bit", "[bit-equality]") {
  auto const ahead = GENERATE(1, 2);
  for (auto const& where : placements_to_run(3))
    for_each_plan_of(
        zbpp::problem(where, 6, toy_costs(), 87),
        {.receive_ahead = ahead},
        [](std::string const& name, plan const& planned) { check(name, planned); });
}

TEST_CASE("the reference learns", "[bit-equality]") {
  auto all = toy::make_model(6);
  auto total = [&](std::int64_t step) {
    double sum = 0;
    for (auto loss : toy::reference_step(all, step, 5)) sum += loss;
    return sum;
  };
  auto const before = total(0);
  toy::update(all);
  CHECK(total(0) < before);
}

}  // namespace test_bit_equality
