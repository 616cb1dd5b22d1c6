// SPDX-License-Identifier: Apache-2.0
//
// Plans for each of several memory limits.
#include <zbpp/planner/find_plan.hpp>
// What the checks need besides.
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/found_plans.hpp>
#include <support/random_stages.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <array>
#include <vector>

namespace test_find_plans {

using namespace zbpp;

using test::check_plan;
using test::refusal;
using test::thinned;

namespace {

bytes limit_of(found_plan const& found) { return found.problem.memory_limits().front(); }

// @return how many of the points are proved
int check_points(
    std::vector<found_plan> const& points,
    problem const& model,
    std::vector<bytes> const& limits,
    plan_choices const& choices) {
  int proved = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    auto const& found = points[i];
    check_plan(found, with_memory_limit(model, limit_of(found)));
    CHECK(std::ranges::find(limits, limit_of(found)) != limits.end());
    proved += found.is_optimal() ? 1 : 0;
    if (i == 0) continue;
    CHECK(limit_of(found) > limit_of(points[i - 1]));
    CHECK(found.cost <= points[i - 1].cost);
    CHECK(found.lower_bound <= points[i - 1].lower_bound);
  }
  // A point is no worse than a search with its limit alone, and there is one wherever that fits.
  for (auto const limit : limits)
    if (auto const alone = test::try_plan(with_memory_limit(model, limit), choices)) {
      auto const same = std::ranges::find(points, limit, limit_of);
      REQUIRE(same != points.end());
      CHECK(same->cost <= alone->cost);
      CHECK(same->lower_bound >= alone->lower_bound);
    }
  return proved;
}

}  // namespace

TEST_CASE("with more memory no plan of layers costs more", "[find_plans][long]") {
  std::size_t points = 0;
  plan_choices const brief{.seconds = 0.006};
  for (int trial = 0; trial < thinned(8, 3); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 3));
    auto const count = static_cast<int>(random.integer(p, 8));
    auto const model = test::random_model(random, placement::linear(p), count, 2 * p, false);
    std::vector<bytes> limits;
    for (int percent : {180, 60, 90, 120, 90})
      limits.push_back(test::usual_memory(model) * percent / 100);
    auto const found = find_plans(model, limits, brief);
    static_cast<void>(check_points(found, model, limits, brief));
    points += found.size();
  }
  CAPTURE(points);
  CHECK(static_cast<int>(points) > thinned(15, 4));
  problem const any(std::vector<layer_costs>(2), {.ranks = 2, .microbatches = 2});
  CHECK(find_plans(any, {}, brief).empty());
}

TEST_CASE("with more memory no plan of stages costs more", "[find_plans]") {
  std::size_t points = 0;
  int proved = 0;
  plan_choices const brief{.seconds = 0.03};
  for (int trial = 0; trial < thinned(12, 1); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const p = static_cast<int>(random.integer(2, 4));
    auto const v = static_cast<int>(random.integer(1, 2));
    auto const m = static_cast<int>(random.integer(1, 3 * p));
    auto const problem = test::some_problem(random, placement::looped(p, v), m, true);
    std::vector<bytes> limits;
    for (int i = 0; i < 6; ++i) limits.push_back(random.integer(0, 3000));
    limits.push_back(limits.front());
    auto choices = brief;
    if (trial % 3 == 1) choices.placement = problem.placement();
    auto const found = find_plans(problem, limits, choices);
    proved += check_points(found, problem, limits, choices);
    points += found.size();
  }
  CAPTURE(points, proved);
  CHECK(static_cast<int>(points) > thinned(25, 1));
  CHECK(proved > thinned(5, -1));
}

TEST_CASE("plans for limits are known where they can be computed by hand", "[find_plans]") {
  stage_costs const stage{
      .forward = 100,
      .backward_input = 100,
      .backward_weight = 100,
      .activation = 100,
      .weight_gradient_input = 100};
  problem const linear(placement::linear(4), 8, stage);
  // One microbatch at a time takes a way down and one up: 4 * 200, and W of the last is over by
  // then.
  std::array<bytes, 3> const limits{400, 99, 100};
  auto const found =
      find_plans(linear, limits, {.placement = placement::linear(4), .seconds = 0.06});
  REQUIRE(found.size() == 2);
  CHECK(limit_of(found[0]) == 100);
  CHECK(limit_of(found[1]) == 400);
  // 1F1B's memory: m S + (p-1)(F + B - W), which is the optimum, and its bubble rate.
  CHECK(found[1].cost == 8 * 300 + 3 * 100);
  CHECK(found[1].is_optimal());
  CHECK(bubble_rate(simulate(found[1].schedule, found[1].problem)) == 1 - 2400.0 / 2700.0);
  auto const any = find_plans(linear, limits, {.seconds = 0.06});
  REQUIRE(any.size() == 2);
  CHECK(any[1].cost <= found[1].cost);
  std::array<bytes, 1> const negative{-1};
  CHECK(refusal([&] {
          (void)find_plans(linear, negative);
        }) == "memory_limit is -1; a limit is at least 0 bytes");
}

TEST_CASE("what fits no limit is left out, and refusals of choices are not", "[find_plans]") {
  layer_costs const layer{
      .forward = 5,
      .backward_input = 5,
      .backward_weight = 5,
      .activation = 10,
      .static_memory = 90};
  problem const model(std::vector<layer_costs>(7, layer), {.ranks = 2, .microbatches = 4});
  CHECK(find_plans(model, std::vector<bytes>{399, 400}, {.seconds = 0.02}).size() == 1);
  auto const for_policy = find_plans(
      model,
      std::vector<bytes>{399, 400, 1000},
      {.placement = model.placement(), .policy = zb_h1{}});
  REQUIRE(for_policy.size() == 2);  // 4 layers on rank 1, and one microbatch: 400
  CHECK(limit_of(for_policy.front()) == 400);
  CHECK(refusal([&] {
          (void)find_plans(model, std::vector<bytes>{400}, {.most_chunks = 1});
        }) == "most_chunks is less than 2; a looped placement has at least 2");
}

}  // namespace test_find_plans
