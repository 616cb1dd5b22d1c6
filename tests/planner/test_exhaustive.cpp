// SPDX-License-Identifier: Apache-2.0
#include <support/exhaustive.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/period.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/registry.hpp>

#include <support/catch.hpp>
#include <support/every_order.hpp>
#include <support/factors.hpp>
#include <support/policy_grid.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/tiny_problem.hpp>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace test_exhaustive {

using zbpp::placement;
using zbpp::problem;
using zbpp::schedule;
using zbpp::stage_costs;
using zbpp::ticks;
using zbpp::test::find_optimum;
using zbpp::test::optimal_cost;
using zbpp::test::tiny_problem;

namespace {

std::optional<ticks> least_of_all(problem const& problem, bool in_turn) {
  return zbpp::test::least_of_orders(problem, in_turn, [&](schedule const& order) {
    return cost(zbpp::simulate(order, problem));
  });
}

std::optional<zbpp::mean_ticks> least_period(problem const& problem, bool in_turn) {
  return zbpp::test::least_of_orders(
      problem, in_turn, [&](schedule const& order) { return zbpp::period(order, problem).period; });
}

// The order that was found has the cost that was found, and keeps within the limits.
void check_order(zbpp::test::optimum const& found, problem const& problem) {
  schedule const order(problem.placement(), problem.microbatches(), found.order);
  CHECK(cost(zbpp::simulate(order, problem)) == found.cost);
  std::size_t parts = 0;  // BW is two of them
  for (auto const& p : order.passes().all())
    if (p.kind != zbpp::pass_kind::recompute) parts += p.kind == zbpp::pass_kind::backward ? 2 : 1;
  CHECK(
      parts == 3 * static_cast<std::size_t>(problem.stages()) *
                   static_cast<std::size_t>(problem.microbatches()));
  auto const peaks = peak_memory(zbpp::lower(order), problem);
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    auto const total = peaks[static_cast<std::size_t>(rank)].total;
    CHECK(total <= problem.memory_limit(rank).value_or(total));
  }
}

// Takes some memory away, so that now and then no order fits.
problem with_less_memory(problem const& problem, zbpp::test::seeded_random& random) {
  std::vector<zbpp::bytes> limits;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    auto const limit = problem.memory_limit(rank);
    limits.push_back(std::max<zbpp::bytes>(0, limit.value_or(12) - random.integer(0, 4)));
  }
  auto const costs = problem.all_costs();
  return {
      problem.placement(),
      problem.microbatches(),
      std::vector<stage_costs>(costs.begin(), costs.end()),
      problem.transfer(),
      limits};
}

struct shape {
  zbpp::placement placement;
  int microbatches;
  int trials;
};

}  // namespace

TEST_CASE("the search finds what looking at every order finds", "[exhaustive][long]") {
  std::vector<shape> const shapes{
      {placement::linear(1), 3, 20},
      {placement::linear(2), 1, 20},
      {placement::linear(2), 2, 150},
      {placement::linear(2), 3, 10},
      {placement::linear(3), 2, 50},
      {placement::custom({1, 0}), 2, 20},
      {placement::v_shape(2), 1, 60},
      {placement::looped(2, 2), 1, 60},
      {placement::custom({0, 0}), 2, 20},
      {placement::custom({0, 0, 1}), 1, 60},
      {placement::custom({0, 0, 1}), 2, 3},
      {placement::custom({0, 1, 0}), 2, 3},
      {placement::custom({1, 0, 0, 1}), 1, 60},
      {placement::custom({0, 1, 0, 2}), 1, 60},
  };
  std::uint64_t stream = 0;
  int impossible = 0;
  int possible = 0;
  for (auto const& [placement, m, trials] : shapes)
    for (int trial = 0; trial < trials; ++trial) {
      ZBPP_SEEDED(random, ++stream);
      auto problem = tiny_problem(random, placement, m);
      if (random.chance(0.2)) problem = with_less_memory(problem, random);
      if (random.chance(0.3)) problem = zbpp::test::with_random_factors(problem, random);
      INFO(placement.name() << ", " << placement.stages() << " stages, " << m << " microbatches");
      auto const found = find_optimum(problem);
      REQUIRE(found.complete);
      CHECK(found.cost == least_of_all(problem, true));
      ++(found.cost ? possible : impossible);
      if (found.cost) check_order(found, problem);
    }
  CHECK(impossible > 20);
  CHECK(possible > 400);
}

TEST_CASE("the search finds what looking at every order with BW finds", "[exhaustive]") {
  std::vector<shape> const shapes{
      {placement::linear(1), 2, 60},
      {placement::linear(1), 3, 20},
      {placement::linear(2), 2, 100},
      {placement::v_shape(2), 1, 60},
      {placement::custom({0, 0}), 2, 10},
      {placement::custom({0, 0, 1}), 1, 40},
      {placement::custom({1, 0, 0, 1}), 1, 40},
  };
  std::uint64_t stream = 5000;
  int fused = 0;
  int fused_for_memory = 0;
  for (auto const& [placement, m, trials] : shapes)
    for (int trial = 0; trial < zbpp::test::thinned(trials, 1 + trials / 20); ++trial) {
      ZBPP_SEEDED(random, ++stream);
      auto model = zbpp::test::tiny_problem_with_gradients(random, placement, m);
      if (random.chance(0.3)) model = zbpp::test::with_random_factors(model, random);
      INFO(placement.name() << ", " << placement.stages() << " stages, " << m << " microbatches");
      auto const found = find_optimum(model);
      REQUIRE(found.complete);
      REQUIRE(found.cost);  // BW needs no more than F keeps
      CHECK(found.cost == least_of_all(model, true));
      check_order(found, model);
      schedule const order(placement, m, found.order);
      auto const all = order.passes().all();
      if (std::none_of(all.begin(), all.end(), [](zbpp::pass const& p) {
            return p.kind == zbpp::pass_kind::backward;
          }))
        continue;
      ++fused;
      // With room for what B adds, BW is no better than B and W.
      auto costs = std::vector<stage_costs>(model.all_costs().begin(), model.all_costs().end());
      for (auto& c : costs) c.output_gradient = 0, c.weight_gradient_input = 0;
      problem const roomy(placement, m, costs, model.transfer());
      fused_for_memory += *optimal_cost(roomy) < *found.cost ? 1 : 0;
    }
  CHECK(fused > zbpp::test::thinned(100, 4));
  CHECK(fused_for_memory > zbpp::test::thinned(20, 0));
}

TEST_CASE("the search finds what looking at every order with all options finds", "[exhaustive]") {
  std::vector<shape> const shapes{
      {placement::linear(1), 2, 80},
      {placement::linear(1), 3, 4},
      {placement::linear(2), 1, 40},
      {placement::linear(2), 2, 40},
      {placement::v_shape(2), 1, 60},
      {placement::looped(2, 2), 1, 40},
      {placement::custom({0, 0}), 2, 8},
      {placement::custom({0, 0, 1}), 1, 60},
      {placement::custom({1, 0, 0, 1}), 1, 20},
  };
  std::uint64_t stream = 8000;
  int fused = 0;
  int recomputed = 0;
  for (auto const& [on, m, trials] : shapes)
    for (int trial = 0; trial < zbpp::test::thinned(trials, 1 + trials / 20); ++trial) {
      ZBPP_SEEDED(random, ++stream);
      auto given = zbpp::test::tiny_problem_with_options(random, on, m);
      if (random.chance(0.3)) given = zbpp::test::with_random_factors(given, random);
      INFO(on.name() << ", " << on.stages() << " stages, " << m << " microbatches");
      auto const found = find_optimum(given);
      REQUIRE(found.complete);
      REQUIRE(found.cost);
      CHECK(found.cost == least_of_all(given, true));
      check_order(found, given);
      schedule const order(on, m, found.order);
      auto const has = [&](zbpp::pass_kind kind) {
        auto const all = order.passes().all();
        return std::any_of(
            all.begin(), all.end(), [&](zbpp::pass const& p) { return p.kind == kind; });
      };
      fused += has(zbpp::pass_kind::backward) ? 1 : 0;
      recomputed += has(zbpp::pass_kind::recompute) ? 1 : 0;
      // It looks for less than a cost, and ends with one that is enough.
      auto const less = find_optimum(given, {.below = *found.cost});
      CHECK((less.complete && !less.cost));
      CHECK(find_optimum(given, {.below = *found.cost + 1}).cost == found.cost);
      CHECK(find_optimum(given, {.enough = *found.cost}).cost == found.cost);
    }
  CHECK(fused > zbpp::test::thinned(50, 2));
  CHECK(recomputed > zbpp::test::thinned(20, 0));
}

TEST_CASE("no order fits less than the least memory, with BW or without", "[exhaustive]") {
  std::uint64_t stream = 6000;
  int needs_fusing = 0;
  for (auto const& [placement, m, trials] : std::vector<shape>{
           {placement::linear(2), 2, 40},
           {placement::custom({0, 0}), 2, 5},
           {placement::v_shape(2), 1, 40},
           {placement::custom({0, 1, 0}), 1, 40}})
    for (int trial = 0; trial < trials; ++trial) {
      ZBPP_SEEDED(random, ++stream);
      auto const given = zbpp::test::tiny_problem_with_gradients(random, placement, m);
      std::vector<stage_costs> const costs(given.all_costs().begin(), given.all_costs().end());
      auto const fits = [&](std::vector<zbpp::bytes> limits) {
        problem const limited(placement, m, costs, given.transfer(), std::move(limits));
        return least_of_all(limited, true).has_value();
      };
      auto const least = zbpp::least_memory(given);
      CHECK(fits(least));
      for (std::size_t rank = 0; rank < least.size(); ++rank) {
        if (least[rank] == 0) continue;
        auto less = least;
        --less[rank];
        CHECK_FALSE(fits(less));
      }
      for (auto const& c : costs) needs_fusing += c.output_gradient > 0 ? 1 : 0;
    }
  CHECK(needs_fusing > 100);
}

// The second stage's first F need not be the second pass of rank 0. If it is not, rank 1 begins
// later, and with its long W that may be better.
TEST_CASE("the search finds orders that make a rank begin late", "[exhaustive]") {
  auto const placement = placement::custom({0, 0, 1});
  std::vector<stage_costs> const known{
      {.forward = 12, .backward_input = 5, .backward_weight = 6},
      {.forward = 0, .backward_input = 1, .backward_weight = 4},
      {.forward = 4, .backward_input = 6, .backward_weight = 23}};
  CHECK(optimal_cost({placement, 2, known}) == 66);
  for (int trial = 0; trial < zbpp::test::thinned(20, 5); ++trial) {
    ZBPP_SEEDED(random, 4000 + trial);
    std::vector<stage_costs> costs;
    for (int s = 0; s < 3; ++s)
      costs.push_back(
          {.forward = random.integer(0, s < 2 ? 15 : 4),
           .backward_input = random.integer(0, 10),
           .backward_weight = s < 2 ? random.integer(0, 8) : random.integer(8, 30)});
    problem const problem(placement, 2, costs);
    CHECK(optimal_cost(problem) == least_of_all(problem, true));
  }
}

// The cost of an order counts from when a rank could begin, so it may help to begin later. An order
// that takes microbatches out of turn can make a rank begin later; what ranks that wait at will can
// reach is the least period, and there turns do not matter. Bounds lie below all three.
TEST_CASE("a rank that begins late may cost less", "[exhaustive]") {
  std::vector<stage_costs> const costs{
      {.forward = 11, .backward_input = 11, .backward_weight = 0},
      {.forward = 2, .backward_input = 5, .backward_weight = 18}};
  problem const problem(placement::linear(2), 2, costs);
  CHECK(optimal_cost(problem) == 54);
  CHECK(least_of_all(problem, true) == 54);
  CHECK(least_of_all(problem, false) == 51);
  CHECK(least_period(problem, true) == zbpp::mean_ticks{50});
  CHECK(least_period(problem, false) == zbpp::mean_ticks{50});
}

TEST_CASE("turns and waiting can only help, and hardly do", "[exhaustive]") {
  int helped = 0;
  for (int trial = 0; trial < zbpp::test::thinned(60, 15); ++trial) {
    ZBPP_SEEDED(random, 1000 + trial);
    auto const problem = tiny_problem(random, placement::linear(2), 2);
    auto const in_turn = optimal_cost(problem);
    auto const any = least_of_all(problem, false);
    auto const waiting = least_period(problem, true);
    REQUIRE(in_turn);
    CHECK(any <= in_turn);
    CHECK(waiting->rounded_up() <= any);
    CHECK(waiting == least_period(problem, false));
    helped += waiting->rounded_up() < *in_turn ? 1 : 0;
  }
  CHECK(helped < 10);
}

TEST_CASE("no policy is better than the optimum", "[exhaustive]") {
  int equal = 0;
  int compared = 0;
  for (int trial = 0; trial < zbpp::test::thinned(150, 30); ++trial) {
    ZBPP_SEEDED(random, 2000 + trial);
    auto const p = static_cast<int>(random.integer(2, 3));
    auto const wheres = zbpp::test::placements(p);
    auto const placement = wheres[static_cast<std::size_t>(random.integer(0, p == 2 ? 2 : 0))];
    auto const given = tiny_problem(random, placement, p * static_cast<int>(random.integer(1, 2)));
    for (auto const& decide : zbpp::test::grid_policies()) {
      if (!zbpp::test::is_supported(decide, given)) continue;
      auto const order = decide(given);
      auto limits = peak_activations(order, given);
      for (int rank = 0; rank < p; ++rank)
        for (int s : placement.stages_of(rank))
          limits[static_cast<std::size_t>(rank)] += given.costs(s).static_memory;
      auto const costs = given.all_costs();
      // What a policy fuses, the optimum may split and put side by side.
      problem const problem(
          placement,
          given.microbatches(),
          std::vector<stage_costs>(costs.begin(), costs.end()),
          given.transfer(),
          limits);
      auto const best = optimal_cost(problem);
      REQUIRE(best);
      auto const taken = cost(zbpp::simulate(order, problem));
      INFO(zbpp::test::name_of(decide, problem));
      CHECK(*best <= taken);
      equal += *best == taken ? 1 : 0;
      ++compared;
    }
  }
  CHECK(equal > zbpp::test::thinned(20, 3));
  CHECK(equal < compared);
}

TEST_CASE("known optima", "[exhaustive]") {
  SECTION("one rank has no bubble") {
    problem const problem(
        placement::linear(1),
        5,
        stage_costs{.forward = 7, .backward_input = 3, .backward_weight = 2});
    CHECK(optimal_cost(problem) == 5 * 12);
  }
  SECTION("with as much memory as it likes, the first rank waits for nothing") {
    problem const problem(
        placement::linear(2),
        8,
        stage_costs{.forward = 1, .backward_input = 1, .backward_weight = 1});
    CHECK(optimal_cost(problem) == 8 * 3);
  }
  // @source arXiv 2401.10241 sec. 5.4: m(F+B+W) + (p-1)(F+B-W) + 4 (p-1) T_comm, of ZB-H1
  SECTION("with p activations a rank, ZB-H1 is as good as anything") {
    for (auto const& [p, m] : {std::pair{2, 6}, std::pair{3, 9}, std::pair{4, 10}}) {
      problem const problem(
          placement::linear(p),
          m,
          stage_costs{
              .forward = 20,
              .backward_input = 19,
              .backward_weight = 11,
              .activation = 273,
              .weight_gradient_input = 100},
          1,
          {273 * p});
      CHECK(optimal_cost(problem) == m * 50 + (p - 1) * (20 + 19 - 11) + 4 * (p - 1));
    }
  }
  SECTION("a rank that lacks memory for one microbatch can do nothing") {
    stage_costs const costs{.forward = 1, .activation = 10, .static_memory = 4};
    CHECK(optimal_cost({placement::linear(2), 2, costs, 0, {14, 13}}) == std::nullopt);
    CHECK(optimal_cost({placement::linear(2), 2, costs, 0, {14, 14}}) == 4);
    CHECK(optimal_cost({placement::linear(2), 2, costs, 0, {14, 3}}) == std::nullopt);
    CHECK(optimal_cost({placement::v_shape(1), 1, costs, 0, {27}}) == std::nullopt);
    CHECK(optimal_cost({placement::v_shape(1), 1, costs, 0, {28}}) == 2);
  }
}

TEST_CASE("more memory never costs more", "[exhaustive]") {
  for (auto const& placement :
       {placement::linear(3), placement::v_shape(2), placement::custom({0, 0, 1, 1})})
    for (int trial = 0; trial < 10; ++trial) {
      ZBPP_SEEDED(random, 3000 + trial);
      auto const time = [&] { return random.integer(1, 20); };
      stage_costs const costs{
          .forward = time(),
          .backward_input = time(),
          .backward_weight = time(),
          .activation = 3,
          .weight_gradient_input = random.integer(0, 3)};
      std::optional<ticks> before;
      for (zbpp::bytes limit = 3; limit <= 15; ++limit) {
        auto const now = optimal_cost({placement, 3, costs, 1, {limit}});
        CHECK((!before || (now && *now <= *before)));
        before = now;
      }
      REQUIRE(before);
      CHECK(before >= optimal_cost({placement, 3, costs, 1}));
    }
}

TEST_CASE("a search that gives up says so", "[exhaustive]") {
  problem const problem(
      placement::linear(4),
      6,
      stage_costs{.forward = 20, .backward_input = 19, .backward_weight = 11, .activation = 1},
      1,
      {5});
  auto const whole = find_optimum(problem);
  REQUIRE(whole.complete);
  REQUIRE(whole.nodes > 80);
  auto const part = find_optimum(problem, {.nodes = 80});
  CHECK_FALSE(part.complete);
  if (part.cost) CHECK(*part.cost >= *whole.cost);
  CHECK_FALSE(find_optimum(problem, {.nodes = 3}).cost);
  try {
    (void)optimal_cost(problem, {.nodes = 3});
    FAIL("an optimum was stated");
  } catch (std::runtime_error const& refused) {
    CHECK(std::string(refused.what()) == "exhaustive search: gave up after 3 states");
  }
}

}  // namespace test_exhaustive
