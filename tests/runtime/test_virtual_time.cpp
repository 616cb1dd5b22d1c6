// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/verify.hpp>

#include <support/backends.hpp>
#include <support/factors.hpp>
#include <support/plain_flow.hpp>
#include <support/random_pairs.hpp>

namespace test_virtual_time {

using namespace zbpp;
using namespace zbpp::test;

namespace {

// Costs of every stage and transfers of every pair of ranks, all different, and often microbatches
// of different sizes.
problem random_problem(seeded_random& random, placement placement, int microbatches) {
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
  return random.chance(0.5) ? with_random_factors(alike, random) : alike;
}

timeline measured_under_virtual_time(plan const& planned) {
  std::vector<plain_flow> stages(detail::index(planned.problem().stages()));
  pipeline pipe{planned, virtual_time{}, stages};
  auto const first = pipe.step().measured;
  auto const& second = pipe.step();
  CHECK(second.measured == first);
  CHECK(plain_flow::are_expected(second.losses, planned.problem().stages()));
  return first;
}

}  // namespace

TEST_CASE("a step under virtual time takes what simulate says, to the tick", "[virtual-time]") {
  auto const p =
      GENERATE(from_range(thinned<std::vector<int>>({1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 6})));
  for (auto const& placement : placements_to_run(p))
    for (int m = 1; m <= 3 * p; m += p <= 4 ? 1 : thinned(2, 5)) {
      ZBPP_SEEDED(random, p * 100 + m);
      auto const problem = random_problem(random, placement, m);
      on_plans(problem, {.recomputed = true, .receive_ahead = m % 3}, [](plan const& planned) {
        CHECK(measured_under_virtual_time(planned) == planned.timeline());
        CHECK(planned.timeline() == simulate(planned.schedule(), planned.problem()));
      });
    }
}

TEST_CASE("pairs take under virtual time what simulate says, to the tick", "[virtual-time]") {
  auto const p = GENERATE(from_range(thinned<std::vector<int>>({1, 2, 3, 4}, {1, 3})));
  std::ptrdiff_t pairs = 0;
  for (auto const& placement : placements_to_run(p))
    for (int m : {2, 2 * p + 1}) {
      ZBPP_SEEDED(random, p * 100 + m);
      auto const problem = with_overlapped(random_problem(random, placement, m), random);
      on_plans(problem, {}, [&](plan const& plain) {
        auto const planned = paired_plan(plain, random, pairs, 0.5, {.receive_ahead = m % 3});
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
  problem const problem(placement, 2, uneven_costs(), 87);
  auto const planned = make_plan(
      "by hand",
      schedule(
          placement,
          2,
          passes(
              {"0F0 0F1 3F0 3B0 3F1 3BW1 0B0 3W0 0B1 0W0 0W1",
               "1F0 2F0 1F1 2F1 2B0 1B0 2BW1 1R1 1B1 1W0 1W1 2W0"})),
      problem);
  CHECK_FALSE(verify(planned.program(), problem).empty());  // W of stage 2 does not ascend
  auto const mended = make_plan(
      "by hand",
      schedule(
          placement,
          2,
          passes(
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
