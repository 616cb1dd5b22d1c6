// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/simulate.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>

#include <support/catch.hpp>
#include <support/factors.hpp>
#include <support/independent_simulator.hpp>
#include <support/instructions.hpp>
#include <support/policy_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <string>
#include <vector>

namespace test_simulate {

using namespace zbpp;
using namespace zbpp::test;

namespace {

// Every stage and every directed pair of ranks is different, and now and then a time is 0.
problem random_problem(zbpp::test::seeded_random& random, placement const& placement, int m) {
  auto const time = [&] { return random.chance(0.1) ? 0 : random.integer(1, 1000); };
  std::vector<stage_costs> stages;
  for (int s = 0; s < placement.stages(); ++s) {
    stage_costs costs{
        .forward = time(),
        .backward_input = time(),
        .backward_weight = time(),
        .recompute = time(),
        .edge = random.integer(0, 100)};
    if (random.chance(0.5))
      costs.backward_fused = random.integer(
          std::max(costs.backward_input, costs.backward_weight),
          costs.backward_input + costs.backward_weight);
    stages.push_back(costs);
  }
  auto const pairs = placement.ranks() * placement.ranks();
  std::vector<ticks> latency;
  std::vector<double> rate;
  for (int i = 0; i < pairs; ++i) {
    latency.push_back(time());
    rate.push_back(random.real(0, 10));
  }
  if (random.chance(0.3)) rate.clear();
  problem const alike(placement, m, stages, zbpp::transfer_costs(placement.ranks(), latency, rate));
  return random.chance(0.5) ? zbpp::test::with_random_factors(alike, random) : alike;
}

std::string refused(std::vector<std::string> const& rows, placement const& placement, int m) {
  return refusal(zbpp::errc::refused_program, [&] {
    (void)simulate(
        schedule(placement, m, passes(rows)), problem(placement, m, stage_costs{.forward = 1}));
  });
}

}  // namespace

TEST_CASE("a pass starts when its rank is free and its input has arrived", "[simulate]") {
  problem const problem(
      placement::linear(2),
      2,
      stage_costs{.forward = 10, .backward_input = 20, .backward_weight = 5},
      3);
  auto const line = simulate(
      schedule(placement::linear(2), 2, passes({"0F0 0F1 0B0 0W0 0BW1", "1F0 1B0 1F1 1W0 1BW1"})),
      problem);
  auto const times = [&](int rank) {
    std::string text;
    for (auto const& timed : line[rank])
      text += to_string(timed.pass) + "@" + std::to_string(timed.start) + "-" +
              std::to_string(timed.end) + " ";
    return text;
  };
  CHECK(times(0) == "0F0@0-10 0F1@10-20 0B0@46-66 0W0@66-71 0BW1@86-111 ");
  CHECK(times(1) == "1F0@13-23 1B0@23-43 1F1@43-53 1W0@53-58 1BW1@58-83 ");
}

TEST_CASE("two chunks of one rank hand over without a transfer", "[simulate]") {
  auto const placement = placement::custom({0, 0});
  problem const problem(
      placement, 1, stage_costs{.forward = 1, .backward_input = 1, .edge = 9}, 100);
  auto const line = simulate(schedule(placement, 1, passes({"0F0 1F0 1B0 0B0 0W0 1W0"})), problem);
  CHECK(makespan(line) == 4);
}

TEST_CASE("R runs after its F and delays the B behind it", "[simulate]") {
  auto const placement = placement::linear(2);
  problem const problem(
      placement,
      1,
      stage_costs{.forward = 10, .backward_input = 20, .backward_weight = 5, .recompute = 9},
      1);
  auto const late =
      simulate(schedule(placement, 1, passes({"0F0 0B0 0W0", "1F0 1R0 1B0 1W0"})), problem);
  CHECK(late[1][1].start == 21);
  CHECK(late[1][2].start == 30);
  CHECK(late[0][1].start == 51);
  CHECK(busy(late, 1) == 35);
  auto const early =
      simulate(schedule(placement, 1, passes({"0F0 0R0 0B0 0W0", "1F0 1BW0"})), problem);
  CHECK(early[0][1].start == 10);
  CHECK(early[0][2].start == 47);
}

TEST_CASE(
    "simulation agrees with an independent simulator on every policy and shape", "[simulate]") {
  int cases = 0;
  zbpp::test::for_each_schedule(
      zbpp::test::thinned<std::vector<int>>({1, 2, 3, 4, 5, 8, 16}, {1, 2, 3, 5}),
      [&](zbpp::any_policy const& decide, problem const& problem, schedule const& order) {
        INFO(zbpp::test::name_of(decide, problem));
        CHECK(simulate_by_events(order, problem) == simulate(order, problem));
        ++cases;
      });
  CHECK(cases > zbpp::test::thinned(400, 80));
}

TEST_CASE(
    "simulation agrees with an independent simulator when no two costs are alike", "[simulate]") {
  auto const policies = zbpp::test::grid_policies();
  for (int trial = 0; trial < zbpp::test::thinned(300, 100); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(1, 6));
    auto const placement =
        zbpp::test::placements(p)[static_cast<std::size_t>(random.integer(0, 4))];
    auto const m = p * static_cast<int>(random.integer(1, 4));
    auto const problem = random_problem(random, placement, m);
    for (auto const& decide : policies) {
      if (!zbpp::test::is_supported(decide, problem)) continue;
      INFO(zbpp::test::name_of(decide, problem));
      auto const order = decide(problem);
      for (auto const& variant :
           {order, zbpp::fuse_backward(order), zbpp::test::with_recompute(order)})
        CHECK(simulate_by_events(variant, problem) == simulate(variant, problem));
    }
  }
}

TEST_CASE(
    "simulation agrees with an independent simulator on orders that nobody planned", "[simulate]") {
  int stuck = 0;
  for (int trial = 0; trial < zbpp::test::thinned(300, 100); ++trial) {
    ZBPP_SEEDED(random, 1000 + trial);
    auto const p = static_cast<int>(random.integer(1, 3));
    auto const placement =
        zbpp::test::placements(p)[static_cast<std::size_t>(random.integer(0, 4))];
    auto const problem = random_problem(random, placement, static_cast<int>(random.integer(1, 3)));
    std::vector<std::vector<zbpp::pass>> all(static_cast<std::size_t>(p));
    for (int rank = 0; rank < p; ++rank)
      for (int s : placement.stages_of(rank))
        for (int m = 0; m < problem.microbatches(); ++m)
          for (auto kind :
               {zbpp::pass_kind::forward,
                zbpp::pass_kind::backward_input,
                zbpp::pass_kind::backward_weight})
            all[static_cast<std::size_t>(rank)].push_back({kind, s, m});
    for (auto& row : all) {  // near the order by kind, so that some of them can run
      std::sort(row.begin(), row.end());
      for (int swaps = 0; swaps < 3; ++swaps) {
        auto const i =
            static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(row.size()) - 2));
        std::swap(row[i], row[i + 1]);
      }
    }
    schedule const order(placement, problem.microbatches(), all);
    auto const expected = simulate_by_events(order, problem);
    if (expected) {
      CHECK(expected == simulate(order, problem));
    } else {
      ++stuck;
      CHECK(refusal(zbpp::errc::refused_program, [&] {
              (void)simulate(order, problem);
            }).find("waits for something that never happens") != std::string::npos);
    }
  }
  CHECK(stuck > 20);
  CHECK(stuck < 280);
}

TEST_CASE("an order that deadlocks is refused by the pass that waits", "[simulate]") {
  auto const placement = placement::linear(2);
  CHECK(
      refused({"0F0 0B0 0W0", "1B0 1F0 1W0"}, placement, 1) ==
      "rank 0, position 1: 0B0 waits for something that never happens");
  CHECK(
      refused({"0F0 0W0 0B0", "1F0 1B0 1W0"}, placement, 1) ==
      "rank 0, position 1: 0W0 waits for something that never happens");
  CHECK(
      refused({"0F0 0B0 0F1", "1F1 1B1 1F0 1B0"}, placement, 2) ==
      "rank 0, position 1: 0B0 waits for something that never happens");
  CHECK(
      refused({"0R0 0F0"}, placement::linear(1), 1) ==
      "rank 0, position 0: 0R0 waits for something that never happens");
  CHECK(
      refused({"0B0"}, placement::linear(1), 1) ==
      "rank 0, position 0: 0B0 waits for something that never happens");
}

TEST_CASE("a pass that stands twice is refused", "[simulate]") {
  auto const placement = placement::linear(1);
  auto const text = [](std::string const& place) {
    return "rank 0, position " + place + " stands twice; every pass runs once";
  };
  CHECK(refused({"0F0 0F0"}, placement, 1) == text("1: 0F0"));
  CHECK(refused({"0F0 0B0 0B0"}, placement, 1) == text("2: 0B0"));
  CHECK(refused({"0F0 0B0 0BW0"}, placement, 1) == text("2: 0BW0"));
  CHECK(refused({"0F0 0BW0 0W0"}, placement, 1) == text("2: 0W0"));
  CHECK(refused({"0F0 0R0 0R0"}, placement, 1) == text("2: 0R0"));
}

TEST_CASE("a schedule that lacks passes is simulated as far as it goes", "[simulate]") {
  auto const placement = placement::linear(2);
  auto const line = simulate(
      schedule(placement, 2, passes({"0F0", "1F0"})),
      problem(placement, 2, stage_costs{.forward = 4}, 1));
  CHECK(makespan(line) == 9);
}

TEST_CASE("a schedule of another placement or number of microbatches is refused", "[simulate]") {
  schedule const order(placement::linear(2), 1, passes({"0F0", "1F0"}));
  std::string const text =
      "made for another placement or another number of microbatches than the problem's";
  CHECK(refusal([&] { (void)simulate(order, {placement::linear(2), 2, stage_costs{}}); }) == text);
  CHECK(refusal([&] {
          (void)simulate(order, {placement::custom({1, 0}), 1, stage_costs{}});
        }) == text);
}

TEST_CASE("the greatest times that a problem takes do not overflow", "[simulate]") {
  auto const placement = placement::linear(2);
  auto const share = (ticks{1} << 62) / 8;
  problem const problem(
      placement,
      1,
      stage_costs{.forward = share - 1, .backward_input = share - 1, .backward_weight = share - 1},
      share - 1);
  auto const line =
      simulate(schedule(placement, 1, passes({"0F0 0B0 0W0", "1F0 1B0 1W0"})), problem);
  CHECK(makespan(line) == 7 * (share - 1));
}

}  // namespace test_simulate
