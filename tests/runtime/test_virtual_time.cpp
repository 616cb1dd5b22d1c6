// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/virtual_time.hpp>
// What the checks need besides.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/factors.hpp>
#include <support/instructions.hpp>
#include <support/plain_flow.hpp>
#include <support/plan_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace test_virtual_time {

using namespace zbpp;

namespace {

// Costs of every stage and transfers of every pair of ranks, all different, and often microbatches
// of different sizes.
problem random_problem(test::seeded_random& random, placement placement, int microbatches) {
  auto const p = placement.ranks();
  std::vector<stage_costs> costs(detail::index(placement.stages()));
  for (auto& c : costs) {
    c.forward = random.integer(0, 1000);
    c.backward_input = random.integer(0, 1000);
    c.backward_weight = random.integer(0, 1000);
    if (random.chance(0.5))
      c.backward_fused = random.integer(
          std::max(c.backward_input, c.backward_weight), c.backward_input + c.backward_weight);
    c.recompute = random.integer(0, 1000);
    c.edge = random.integer(8, 64);
  }
  std::vector<ticks> latency(detail::index(p) * detail::index(p));
  std::vector<double> rates(latency.size());
  for (auto& l : latency) l = random.chance(0.2) ? 0 : random.integer(0, 500);
  for (auto& r : rates) r = random.chance(0.5) ? 0.0 : random.real(0, 20);
  problem const alike(
      std::move(placement),
      microbatches,
      std::move(costs),
      transfer_costs(p, std::move(latency), std::move(rates)));
  return random.chance(0.5) ? test::with_random_factors(alike, random) : alike;
}

timeline measured_under_virtual_time(plan const& planned) {
  std::vector<test::plain_flow> stages(detail::index(planned.problem().stages()));
  pipeline pipe{planned, virtual_time{}, stages};
  auto const first = pipe.step().measured;
  auto const& second = pipe.step();
  CHECK(second.measured == first);
  for (int m = 0; m < planned.problem().microbatches(); ++m)
    if (second.losses[detail::index(m)] !=
        test::plain_flow::expected_loss(planned.problem().stages(), m))
      FAIL("the loss of microbatch " << m << " is " << second.losses[detail::index(m)]);
  return first;
}

}  // namespace

TEST_CASE("a step under virtual time takes what simulate says, to the tick", "[virtual-time]") {
  auto const p =
      GENERATE(from_range(test::thinned<std::vector<int>>({1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 6})));
  for (auto const& placement : test::placements_to_run(p))
    for (int m = 1; m <= 3 * p; m += p <= 4 ? 1 : test::thinned(2, 5)) {
      ZBPP_SEEDED(random, p * 100 + m);
      auto const problem = random_problem(random, placement, m);
      test::for_each_plan_of(
          problem,
          {.recomputed = true, .receive_ahead = m % 3},
          [](std::string const& name, plan const& planned) {
            INFO(name);
            CHECK(measured_under_virtual_time(planned) == planned.timeline());
            CHECK(planned.timeline() == simulate(planned.schedule(), planned.problem()));
          });
    }
}

TEST_CASE("pairs take under virtual time what simulate says, to the tick", "[virtual-time]") {
  auto const p = GENERATE(from_range(test::thinned<std::vector<int>>({1, 2, 3, 4}, {1, 3})));
  std::ptrdiff_t pairs = 0;
  for (auto const& placement : test::placements_to_run(p))
    for (int m : {2, 2 * p + 1}) {
      ZBPP_SEEDED(random, p * 100 + m);
      auto const problem = test::with_overlapped(random_problem(random, placement, m), random);
      test::for_each_plan_of(problem, {}, [&](std::string const& name, plan const& plain) {
        INFO(name);
        auto const planned = test::paired_plan(plain, random, pairs, 0.5, {.receive_ahead = m % 3});
        CHECK(measured_under_virtual_time(planned) == planned.timeline());
      });
    }
  CHECK(pairs > 0);
}

TEST_CASE("opening receives early changes no time", "[virtual-time]") {
  ZBPP_SEEDED(random, 1);
  auto const problem = random_problem(random, placement::v_shape(4), 9);
  auto const expected = simulate(zb_v{}(problem), problem);
  for (int ahead : {0, 1, 2, 50})
    CHECK(
        measured_under_virtual_time(make_plan(zb_v{}, problem, {.receive_ahead = ahead})) ==
        expected);
}

TEST_CASE("any order that verify takes runs as simulate says", "[virtual-time]") {
  // Ranks come back to stages in an order no policy has; W is put off, to the very end on one rank.
  auto const placement = placement::custom({0, 1, 1, 0});
  problem const problem(placement, 2, test::uneven_costs(), 87);
  auto const planned = make_plan(
      "by hand",
      schedule(
          placement,
          2,
          test::passes(
              {"0F0 0F1 3F0 3B0 3F1 3BW1 0B0 3W0 0B1 0W0 0W1",
               "1F0 2F0 1F1 2F1 2B0 1B0 2BW1 1R1 1B1 1W0 1W1 2W0"})),
      problem);
  CHECK_FALSE(verify(planned.program(), problem).empty());  // W of stage 2 does not ascend
  auto const mended = make_plan(
      "by hand",
      schedule(
          placement,
          2,
          test::passes(
              {"0F0 0F1 3F0 3B0 3W0 3F1 3BW1 0B0 0B1 0W0 0W1",
               "1F0 2F0 1F1 2F1 2B0 1B0 2W0 2BW1 1R1 1B1 1W0 1W1"})),
      problem);
  CHECK(verify(mended.program(), problem).empty());
  CHECK(measured_under_virtual_time(mended) == mended.timeline());
}

TEST_CASE("the clock of virtual time waits for messages and never runs back", "[virtual-time]") {
  virtual_time::pass_observer clock;
  CHECK(clock.start(0, {}) == 0);
  CHECK(clock.finish(10) == 10);
  CHECK(clock.start(5, {}) == 10);
  CHECK(clock.start(25, {}) == 25);
  CHECK(clock.finish(0) == 25);
  CHECK(clock.arrival_of_send(7) == 32);
  STATIC_REQUIRE(virtual_time::pass_observer::has_arrived(1'000'000));
}

}  // namespace test_virtual_time
