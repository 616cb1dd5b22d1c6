// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/save_memory.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/catch.hpp>
#include <support/planner_problems.hpp>
#include <support/policy_grid.hpp>
#include <support/random_pairs.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/tiny_problem.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace test_save_memory {

using namespace zbpp;
using test::thinned;

namespace {

stage_costs const even{
    .forward = 1000,
    .backward_input = 1000,
    .backward_weight = 1000,
    .activation = 1000,
    .weight_gradient_input = 500};

memory_use use_of(schedule const& order, problem const& problem) {
  std::vector<bytes> peaks;
  for (auto const& one : peak_memory(lower(order), problem)) peaks.push_back(one.total);
  return memory_use_of(peaks, problem);
}

bytes peak_of(schedule const& order, problem const& problem) {
  auto const peaks = peak_memory(lower(order), problem);
  return std::ranges::max(peaks, {}, &memory_peak::total).total;
}

problem without_limits(problem const& limited) {
  return {
      limited.placement(),
      limited.microbatches(),
      {limited.all_costs().begin(), limited.all_costs().end()},
      limited.transfer()};
}

// No policy that does not search costs no more and takes less.
void check_against_policies(found_plan const& found) {
  auto const& problem = found.problem;
  auto const use = use_of(found.schedule, problem);
  auto policies = builtin_policies();
  std::erase_if(policies, [](any_policy const& one) { return one.searches(); });
  policies.emplace_back(zb_v{});
  for (auto const& policy : policies) {
    CAPTURE(policy.name(), problem.placement().name(), problem.ranks(), problem.microbatches());
    try {
      auto const other = policy(problem);
      if (cost(simulate(other, problem)) <= found.cost) CHECK(use <= use_of(other, problem));
    } catch (error const& refused) {
      REQUIRE(refused.code() == errc::unsupported_problem);
    }
  }
}

}  // namespace

TEST_CASE("the least share of the fullest rank comes first, then the sum", "[save_memory]") {
  problem const unlimited(placement::linear(2), 2, even);
  CHECK(memory_use_of({5, 3}, unlimited) == memory_use{5, 8});
  CHECK(memory_use_of({4, 4}, unlimited) < memory_use_of({5, 1}, unlimited));
  CHECK(memory_use_of({5, 1}, unlimited) < memory_use_of({2, 5}, unlimited));
  problem const limited(placement::linear(2), 2, even, 0, {10, 100});
  CHECK(memory_use_of({5, 40}, limited) == memory_use{0.5, 45});
  CHECK(memory_use_of({1, 90}, limited) > memory_use_of({8, 10}, limited));
  problem const none(placement::linear(1), 2, stage_costs{}, 0, {0});
  CHECK(memory_use_of({0}, none) == memory_use{});
}

TEST_CASE("a plan without limits takes no more memory than policies that cost the same", "[long]") {
  struct row {
    zbpp::placement placement;
    int microbatches;
    ticks cost;
    bytes most;
  };
  for (auto const& [placement, m, least, most] :
       {row{placement::linear(2), 128, 384'000, 3'000},
        row{placement::v_shape(4), 32, 192'000, 8'000},
        row{placement::linear(8), 64, 192'000, 15'000},
        row{placement::v_shape(8), 64, 384'000, 16'000},
        row{placement::looped(8, 2), 64, 384'000, 24'000},
        row{placement::linear(1), 16, 48'000, 1'000}}) {
    problem const problem(placement, m, even);
    auto const found = detail::find_order(problem, {}, 0);
    CAPTURE(placement.name(), m);
    CHECK(found.cost == least);
    CHECK(peak_of(found.schedule, problem) <= most);
  }
}

TEST_CASE("over a grid no handcrafted policy is as cheap with less memory", "[save_memory][long]") {
  auto const planned = [](problem const& model) {
    return detail::find_order(model, {.seconds = 0.024}, 0);
  };
  for (int p : thinned<std::vector<int>>({1, 2, 3, 4, 8}, {1, 2, 4}))
    for (auto const& placement : test::placements(p))
      for (int m : {1, p, 2 * p, 5 * p})
        for (ticks const transfer : {0, 100}) {
          problem const model(placement, m, even, transfer);
          check_against_policies(planned(model));
          problem const uneven(placement, m, test::uneven_costs(), transfer);
          check_against_policies(planned(uneven));
        }
  test::plain_random random(4);
  for (int i = 0; i < thinned(12, 4); ++i)
    for (char kind : {'l', 'v', 'o'}) {
      auto const problem = without_limits(test::uneven_problem(random, kind));
      check_against_policies(planned(problem));
    }
}

TEST_CASE("no policy that searches fills a rank less at the same cost", "[save_memory]") {
  search_settings const search{.seconds = 0.8};
  for (auto const& placement : {placement::v_shape(4), placement::looped(4, 2)})
    for (int m : thinned<std::vector<int>>({4, 8, 20}, {8})) {
      problem const problem(placement, m, even);
      auto const found = detail::find_order(problem, search, 0);
      auto const share = use_of(found.schedule, problem).largest_share;
      for (auto const& policy : builtin_policies()) {
        bool const is_for_it = placement.is_v_shape() == (policy.name() != interleaved_zb::name);
        if (!policy.searches() || policy.name() == greedy_auto::name || !is_for_it) continue;
        auto const other = policy(problem, search);
        CAPTURE(policy.name(), placement.name(), m);
        if (cost(simulate(other, problem)) <= found.cost)
          CHECK(share <= use_of(other, problem).largest_share);
      }
    }
}

namespace {

// A plan whose memory was not looked at.
found_plan cheapest_plan(problem const& problem, search_settings const& search) {
  auto found = detail::search_once(problem, detail::search_budget(search));
  return {
      .problem = problem,
      .schedule = std::move(found.schedule),
      .cost = found.cost,
      .bound = found.bound,
      .lower_bound = found.bound.cost,
      .tries = found.tries,
      .work = found.work};
}

}  // namespace

// With edges, R, BW, pairs, uneven limits and static memory.
TEST_CASE("saving memory never costs more, breaks a limit or takes more", "[save_memory]") {
  int less = 0;
  for (int trial = 0; trial < thinned(120, 8); ++trial) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(trial));
    auto const placement =
        trial % 4 == 3 ? placement::custom({0, 0, 1, 0, 1}) : test::tiny_placement(random, trial);
    auto const m = static_cast<int>(random.integer(1, 8));
    auto problem = trial % 2 == 0 ? test::tiny_problem(random, placement, m)
                                  : test::tiny_problem_with_gradients(random, placement, m);
    if (trial % 5 == 0) problem = test::with_overlapped(problem, random);
    search_settings const search{.seconds = 0.008};
    auto const cheapest = cheapest_plan(problem, search);
    auto const found = save_memory(cheapest, cheapest.cost, search);
    CHECK(found.cost <= cheapest.cost);
    CHECK(found.cost == cost(simulate(found.schedule, problem)));
    CHECK(found.bound == cheapest.bound);
    CHECK(verify(lower(found.schedule), problem).empty());
    CHECK(use_of(found.schedule, problem) <= use_of(cheapest.schedule, problem));
    less += use_of(found.schedule, problem) < use_of(cheapest.schedule, problem) ? 1 : 0;
    CHECK(save_memory(cheapest, cheapest.cost, search) == found);
  }
  CHECK(less > 0);
}

TEST_CASE("the more time may be spent for memory, the less a plan takes", "[save_memory]") {
  test::plain_random random(6);
  int less = 0;
  for (char kind : {'l', 'v', 'o'})
    for (int i = 0; i < thinned(4, 2); ++i) {
      auto const problem = without_limits(test::uneven_problem(random, kind));
      search_settings const search{.seconds = 0.16};
      auto const at_cost = detail::find_order(problem, search, 0);
      for (double share : {0.005, 0.05}) {
        auto const found = detail::find_order(problem, search, share);
        CHECK(
            static_cast<double>(found.cost) <=
            std::ceil((1 + share) * static_cast<double>(at_cost.cost)));
        CHECK(found.cost == cost(simulate(found.schedule, problem)));
        CHECK(verify(lower(found.schedule), problem).empty());
        less += use_of(found.schedule, problem) < use_of(at_cost.schedule, problem) ? 1 : 0;
      }
    }
  CHECK(less > thinned(4, 2));
  problem const model(placement::linear(2), 4, even);
  for (double share : {-0.1, 1.5, std::nan("")}) {
    CHECK(test::refusal(errc::bad_argument, [&] {
            (void)greedy_auto{.most_memory_for = share}(model);
          }).starts_with("most_memory_for is "));
    CHECK_THROWS_AS(find_plan(model, {.most_memory_for = share}), error);
  }
}

TEST_CASE("searches over placements spend time for memory alike", "[save_memory]") {
  layer_costs const layer{
      .forward = 1000,
      .backward_input = 1000,
      .backward_weight = 1000,
      .recompute = 1000,
      .activation = 1000,
      .weight_gradient_input = 500};
  problem const stages(placement::looped(4, 2), 24, even);
  problem const layers(std::vector<layer_costs>(8, layer), {.ranks = 4, .microbatches = 24});
  for (auto const& model : {stages, layers}) {
    auto const planned = [&](double share) {
      auto found = find_plan(model, {.most_memory_for = share, .seconds = 0.8});
      CHECK(found.cost == cost(simulate(found.schedule, found.problem)));
      CHECK(verify(lower(found.schedule), found.problem).empty());
      return found;
    };
    auto const cheapest = planned(0);
    auto const leaner = planned(0.05);
    CHECK(cheapest.cost == 2 * 24 * 3000);
    CHECK(peak_of(cheapest.schedule, cheapest.problem) <= 8000);
    CHECK(leaner.cost <= cheapest.cost + cheapest.cost / 20);
    CHECK(peak_of(leaner.schedule, leaner.problem) < peak_of(cheapest.schedule, cheapest.problem));
  }
}

TEST_CASE("saving memory keeps to its budget, and ends when it is told", "[save_memory]") {
  test::plain_random random(9);
  for (char kind : {'l', 'v', 'o'}) {
    auto const problem = without_limits(test::uneven_problem(random, kind));
    auto const passes = 3.0 * problem.stages() * problem.microbatches();
    search_settings search{.seconds = 0.01};
    auto const cheapest = cheapest_plan(problem, search);
    auto const found = save_memory(cheapest, cheapest.cost, search);
    // Those of 75 / 2 passes are the shortest; a search that has begun has one try at least.
    auto const budget = search.seconds * detail::passes_per_second;
    auto const most = budget / 37.5 + 200;
    CAPTURE(kind, passes);
    CHECK(static_cast<double>(found.tries - cheapest.tries) <= most);
    CHECK(found.work - cheapest.work <= 2 * budget);  // each search has one try at least
    search.stop = [] { return true; };
    CHECK(save_memory(cheapest, cheapest.cost, search).schedule == cheapest.schedule);
  }
}

}  // namespace test_save_memory
