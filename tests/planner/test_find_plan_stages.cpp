// SPDX-License-Identifier: Apache-2.0
//
// Plans of problems that state stages, which are cut anew for each placement.
#include <zbpp/planner/find_plan.hpp>
// What the checks need besides.
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/model/detail/divided_stages.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/planner/save_memory.hpp>

#include <support/catch.hpp>
#include <support/changed_problems.hpp>
#include <support/found_plans.hpp>
#include <support/random_stages.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

namespace test_find_plan_stages {

using namespace zbpp;

using test::check_plan;
using test::refusal;

namespace {

plan_choices const brief{.seconds = 0.06};

problem even(placement const& placement, int microbatches, ticks hop = 0, bytes limit = 1 << 20) {
  return {
      placement,
      microbatches,
      stage_costs{
          .forward = 100,
          .backward_input = 100,
          .backward_weight = 100,
          .activation = 100,
          .weight_gradient_input = 100},
      hop,
      {limit}};
}

// Any costs, with limits that leave some room, or none.
problem random_stages(test::seeded_random& random, int trial) {
  auto const p = static_cast<int>(random.integer(1, 4));
  auto const v = static_cast<int>(random.integer(1, 4));
  auto const m = static_cast<int>(random.integer(1, 3 * p));
  auto problem = test::some_problem(random, placement::looped(p, v), m, trial % 2 == 0);
  if (trial % 4 >= 2) problem = test::with_gradients(random, problem);
  if (trial % 2 != 0) return problem;
  auto limits = least_memory(problem);
  for (auto& limit : limits) limit += random.integer(0, 800);
  return with_memory_limits(std::move(problem), std::move(limits));
}

memory_use use_of(schedule const& order, problem const& problem) {
  return memory_use_of(detail::memory_of(order, problem), problem);
}

}  // namespace

TEST_CASE("stages become layers, or halves of them where ranks have one", "[find_plan]") {
  for (int trial = 0; trial < 200; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const stated = random_stages(random, trial);
    auto const found = find_plan(stated, {.seconds = 0}).problem;
    int const parts = stated.stages() < 2 * stated.ranks() ? 2 : 1;
    CHECK(std::ranges::equal(found.layers(), detail::divided_stages(stated.all_costs(), parts)));
    CHECK(found.ranks() == stated.ranks());
    CHECK(found.microbatches() == stated.microbatches());
    CHECK(found.transfer() == stated.transfer());
    CHECK(std::ranges::equal(found.memory_limits(), stated.memory_limits()));
  }
}

TEST_CASE("a plan of stages beats what its own placement has at once", "[find_plan][long]") {
  std::vector<any_policy> policies = builtin_policies();
  std::erase_if(policies, [](any_policy const& one) { return one.searches(); });
  int moved = 0;
  int compared = 0;
  for (int trial = 0; trial < test::thinned(60, 6); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const stated = random_stages(random, trial);
    auto const found = find_plan(stated, brief);
    check_plan(found, stated);
    CHECK(find_plan(stated, brief) == found);
    CHECK(found.cost <= detail::search_once(stated, detail::search_budget({.seconds = 0})).cost);
    for (auto const& policy : policies) {
      if (!policy.refusal(stated.placement(), stated.microbatches()).empty()) continue;
      auto const order = policy(stated);
      if (!detail::is_within_limits(order, stated)) continue;
      INFO(policy.name());
      CHECK(found.cost <= cost(simulate(order, stated)));
      ++compared;
    }
    moved += found.problem.placement() != stated.placement() ? 1 : 0;
  }
  CAPTURE(compared, moved);
  CHECK(compared > test::thinned(60, 3));
  CHECK(moved > test::thinned(5, -1));
}

TEST_CASE("on a placement that is fixed stages stay as they are merged there", "[find_plan]") {
  for (int trial = 0; trial < test::thinned(20, 4); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const stated = with_memory_limits(random_stages(random, trial), {});
    for (auto const& placement :
         {stated.placement(),
          placement::linear(stated.ranks()),
          placement::v_shape(stated.ranks())}) {
      plan_choices choices{.placement = placement, .seconds = 0.004};
      auto const placed = with_placement(stated, placement);
      auto const found = find_plan(stated, choices);
      CHECK(found == detail::find_order(placed, choices.search(), 0));
      choices.policy = greedy_auto{};
      auto const ordered = find_plan(stated, choices);
      CHECK(ordered.problem == placed);
      CHECK(ordered.cost == cost(simulate(ordered.schedule, placed)));
    }
  }
}

TEST_CASE("which placement is best depends on memory and transfers", "[find_plan]") {
  auto const best = [](problem const& problem) {
    return find_plan(problem, brief).problem.placement();
  };
  CHECK(best(even(placement::linear(4), 12, 0, 400)) == placement::v_shape(4));
  CHECK(best(even(placement::looped(4, 2), 12, 0, 800)) == placement::v_shape(4));
  // With so long a hop chunks only wait for each other.
  CHECK(best(even(placement::v_shape(2), 4, 5000)) == placement::linear(2));
  // At the same cost ZB-V takes half the memory of ZB-H2.
  CHECK(best(even(placement::looped(4, 2), 12)) == placement::v_shape(4));
  // All cost the same on one rank: the fewest stages.
  CHECK(best(even(placement::looped(1, 4), 3)) == placement::linear(1));
}

TEST_CASE("of plans of stages that cost the same none takes less memory", "[find_plan]") {
  for (auto const& placement : {placement::linear(4), placement::looped(4, 2)}) {
    auto const stated = even(placement, 12);
    auto const best = find_plan(stated, brief);
    for (auto const& other :
         {placement::linear(4), placement::v_shape(4), placement::looped(4, 2)}) {
      auto choices = brief;
      choices.placement = other;
      auto const one = find_plan(stated, choices);
      CHECK(one.cost >= best.cost);
      if (one.cost == best.cost)
        CHECK(use_of(one.schedule, one.problem) >= use_of(best.schedule, best.problem));
    }
  }
}

TEST_CASE("placements of stages without enough memory are left out", "[find_plan]") {
  // A custom placement has its first three stages on rank 0, so it needs more there.
  problem const stated(
      placement::custom({0, 0, 0, 1}), 4, stage_costs{.forward = 1, .activation = 100}, {}, {250});
  auto const found = find_plan(stated, brief);
  CHECK(found.problem.placement() != stated.placement());
  check_plan(found, stated);
  CHECK(
      refusal(
          errc::unsupported_problem,
          [&] { (void)find_plan(with_memory_limit(stated, 199), brief); }) ==
      "rank 0: no partition that was tried fits, on any placement: the closest, linear, needs 200 "
      "bytes, the limit is 199; it fits when every limit is higher by 1");
}

TEST_CASE("plans of stages are searched with factors and beside replicas", "[find_plan]") {
  auto const stated = with_replicas(
      with_microbatch_factors(even(placement::v_shape(2), 4), {1, 0.5, 2, 3}), {.count = 3});
  auto const found = find_plan(stated, brief);
  check_plan(found, stated);
  CHECK(found.problem.replicas() == stated.replicas());
  CHECK(std::ranges::equal(found.problem.microbatch_factors(), stated.microbatch_factors()));
}

TEST_CASE(
    "a search of placements for stages tells how far it is and can be stopped", "[find_plan]") {
  auto const stated = even(placement::looped(4, 2), 12, 7, 500);
  double last = 0;
  bool ascends = true;
  int calls = 0;
  auto choices = brief;
  choices.on_progress = [&](search_progress const& now) {
    ascends = ascends && now.spent >= last && now.spent <= 1;
    last = now.spent;
    ++calls;
  };
  (void)find_plan(stated, choices);
  CHECK(ascends);
  CHECK(calls > 3);
  CHECK(last > 0.9);
  check_plan(find_plan(stated, {.seconds = 1e6, .stop = [] { return true; }}), stated);
}

}  // namespace test_find_plan_stages
