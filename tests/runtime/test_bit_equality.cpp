// SPDX-License-Identifier: Apache-2.0
//
// The claim of the library: whatever the policy and the backend, losses, gradients and weights are
// those of one process, to the bit.
#include <support/backends.hpp>
#include <support/same_bits.hpp>
#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_objects.hpp>
#include <support/toy_reference.hpp>

namespace test_bit_equality {

using namespace zbpp;
using namespace zbpp::test;
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
way<history> by_hand(std::string const& name, Backend const& backend) {
  return {name, [=](plan const& planned, std::uint64_t) {
            auto all = toy::make_model(planned.problem().stages());
            std::vector<toy::hand_written> stages(all.begin(), all.end());
            return train_pipeline(planned, backend, all, stages);
          }};
}

template <class Passes = toy::passes, class Backend>
way<history> as_flow(std::string const& name, Backend const& backend) {
  return {name, [=](plan const& planned, std::uint64_t) {
            auto all = toy::make_model(planned.problem().stages());
            std::vector<Passes> objects(all.begin(), all.end());
            std::vector<zbpp::as_flow<Passes>> stages(objects.begin(), objects.end());
            return train_pipeline(planned, backend, all, stages);
          }};
}

problem with_parcels(placement const& placement, int microbatches) {
  auto costs = uneven_costs();
  costs.edge = toy::parcel_edge;
  return {placement, microbatches, costs, 87};
}

}  // namespace

TEST_CASE("every policy gives the bits of one process, whatever varies", "[bit-equality][long]") {
  same_bits(
      train_reference,
      {by_hand("virtual time", virtual_time{}),
       by_hand("threads", threads{}),
       as_flow("virtual time, as_flow", virtual_time{}),
       as_flow("two threads, as_flow", threads{.count = 2}),
       as_flow<toy::packing_passes>("virtual time, objects", virtual_time{}),
       as_flow<toy::packing_passes>("threads, objects", threads{})},
      {{"every policy",
        thinned<std::vector<int>>({1, 2, 3, 4, 5, 8}, {1, 3}),
        microbatches_to_run,
        with_parcels},
       {"recomputation", {1, 2, 4}, times(2), with_parcels, {.fused = false, .recomputed = true}},
       {"pairs", {2, 3}, times(2, 1), with_parcels, {.recomputed = true, .pairing = 0.8}},
       {"receives a pass early", {3}, times(2), with_parcels, {.receive_ahead = 1}},
       {"receives two passes early", {3}, times(2), with_parcels, {.receive_ahead = 2}}});
  CHECK(toy::parcel::alive == 0);
}

TEST_CASE("it does not matter how many threads the ranks share", "[bit-equality][long]") {
  std::vector<way<history>> ways;
  for (int count : {1, 2, 3, 4, 7}) {
    auto const name = std::to_string(count) + " threads";
    ways.push_back(by_hand(name, threads{.count = count}));
    ways.push_back(as_flow(name + " that spin", threads{.count = count, .spins = 50}));
    ways.push_back(
        by_hand(name + ", transfers", threads{.count = count, .emulates_transfers = true}));
  }
  same_bits(train_reference, ways, {{"threads", {4}, only(9), with_parcels, {.placements = vs}}});
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
