// SPDX-License-Identifier: Apache-2.0
//
// Microbatches of different sizes: that all parts of the library take them for what they are.
// Simulation, virtual time, periods and exhaustive searches have them in their own tests, too.
#include <zbpp/model/problem.hpp>
// What the checks need besides.
#include <zbpp/adapt/detail/plans_by_count.hpp>
#include <zbpp/adapt/replanner.hpp>
#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/costs_from.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/profile.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/stage_work.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/exhaustive.hpp>
#include <support/factors.hpp>
#include <support/found_plans.hpp>
#include <support/planner_problems.hpp>
#include <support/policy_grid.hpp>
#include <support/random_layers.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/tiny_optima.hpp>
#include <support/tiny_problem.hpp>

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace test_microbatch_factors {

using namespace zbpp;
using test::seeded_random;
using test::with_random_factors;

namespace {

std::vector<double> equal_factors(problem const& problem, double factor) {
  return std::vector<double>(detail::index(problem.microbatches()), factor);
}

// The problem whose microbatches are all so many times as long, which has no factors.
problem with_longer_times(problem const& stated, double factor) {
  std::vector<stage_costs> stages;
  for (auto const& c : stated.all_costs()) stages.push_back(times_factor(c, factor));
  auto const& hops = stated.transfer();
  if (hops.time_per_byte().empty()) return with_stages(stated, stages);
  std::vector<double> rates;
  for (double const rate : hops.time_per_byte()) rates.push_back(rate * factor);
  return with_transfer(
      with_stages(stated, stages),
      {hops.ranks(), {hops.latency().begin(), hops.latency().end()}, rates});
}

found_plan brief_plan(problem const& problem, double seconds = 0.002) {
  return detail::find_order(problem, {.seconds = seconds}, 0);
}

// Within the memory of 1F1B or twice that, on any placement, with microbatches of random sizes.
problem middling_problem(seeded_random& random) {
  test::plain_random plain(random.bits());
  constexpr char kinds[] = {'l', 'v', 'o'};
  auto made = test::uneven_problem(plain, kinds[random.integer(0, 2)]);
  auto const m = static_cast<int>(std::min<std::int64_t>(made.microbatches(), 24));
  return with_random_factors(with_microbatches(made, m), random);
}

}  // namespace

TEST_CASE("factors of 1 are none", "[factors]") {
  ZBPP_SEEDED(random, 1);
  auto const alike = test::tiny_problem(random, placement::linear(3), 4);
  CHECK(with_microbatch_factors(alike, equal_factors(alike, 1)) == alike);
  CHECK(alike.microbatch_factors().empty());
  CHECK(alike.microbatch_factor(3) == 1);
  auto const other = with_microbatch_factors(alike, {1, 2, 1, 1});
  CHECK(other != alike);
  CHECK(with_microbatch_factors(other, {}) == alike);
}

TEST_CASE("a factor multiplies the times of passes and the bytes of messages", "[factors]") {
  stage_costs const stage{
      .forward = 10,
      .backward_input = 11,
      .backward_weight = 13,
      .backward_fused = 20,
      .recompute = 5,
      .overlapped = 15,
      .norm = 7,
      .optimizer_step = 9,
      .activation = 4,
      .edge = 100};
  problem const stated(placement::linear(2), 3, stage, {2, {0, 3, 4, 0}, {0, 0.1, 0.3, 0}}, {50});
  auto const problem = with_microbatch_factors(stated, {1, 0.5, 3});
  CHECK(problem.costs(1) == stage);
  CHECK(problem.costs(1, 0) == stage);
  auto const half = problem.costs(0, 1);
  CHECK(half.forward == 5);
  CHECK(half.backward_input == 6);   // 5.5
  CHECK(half.backward_weight == 7);  // 6.5
  CHECK(half.of(pass_kind::backward) == 10);
  CHECK(half.recompute == 3);   // 2.5
  CHECK(half.overlapped == 8);  // 7.5
  CHECK(half.norm == 7);
  CHECK(half.optimizer_step == 9);
  CHECK(half.activation == 4);
  CHECK(problem.time({pass_kind::backward, 1, 2}) == 60);
  CHECK(problem.transfer_time(0, 1, 0) == 13);
  CHECK(problem.transfer_time(0, 1, 1) == 8);
  CHECK(problem.transfer_time(1, 0, 2) == 94);
  // F hides 6 beside a B at the factor 1, and each microbatch what it has.
  pass const f{pass_kind::forward, 0, 2};
  pass const b{pass_kind::backward_input, 0, 1};
  CHECK(problem.pair_time(f, b) == 30 + 6 - (5 + 6 - 8));
  CHECK(problem.memory_limit(1) == bytes{50});
}

TEST_CASE("factors that cannot be are refused", "[factors]") {
  problem const alike(placement::linear(2), 3, stage_costs{.forward = 1});
  auto const refused = [&](std::vector<double> factors) {
    return test::refusal([&] { static_cast<void>(with_microbatch_factors(alike, factors)); });
  };
  CHECK(
      refused({1, 2}) ==
      "there are 2 microbatch factors for 3 microbatches; give one for each, or none");
  CHECK(
      refused({1, 0, 1}) == "microbatch 1: the microbatch factor is 0.000000; a factor is above 0 "
                            "and at most 10^6");
  for (double const wrong :
       {-1.0,
        1e6 + 1,
        std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()})
    CHECK(refused({1, 1, wrong}).starts_with("microbatch 2: the microbatch factor is "));
  CHECK(refused({1e6, 1e-300, 1}) == "<nothing was refused>");
  auto const most = std::numeric_limits<ticks>::max() / 16;
  problem const long_passes(placement::linear(1), 2, stage_costs{.forward = most});
  CHECK(test::refusal([&] {
          static_cast<void>(with_microbatch_factors(long_passes, {1, 1000}));
        }) == "times or sizes add up to more than 2^62 over a step; use a coarser unit");
  auto const given = with_microbatch_factors(alike, {1, 2, 3});
  CHECK(with_microbatches(given, 3) == given);
  auto const other_number =
      "the 3 microbatches have a factor each, which says nothing of 2; take the factors away "
      "first, and give those of the others";
  CHECK(test::refusal([&] { static_cast<void>(with_microbatches(given, 2)); }) == other_number);
  detail::plans_by_count plans({.seconds = 0});
  CHECK(test::refusal([&] {
          static_cast<void>(plans.plan_for(make_plan(zb_h1{}, given), 2));
        }) == other_number);
  CHECK(test::refusal(errc::unsupported_problem, [&] {
          replanner const moving(make_plan(zb_h1{}, given), {.moves_stages = true});
        }).starts_with("replan_settings::moves_stages: the microbatches of the first plan have"));
}

TEST_CASE("equal factors are longer times, in bounds and plans", "[factors][long]") {
  int better = 0;
  for (int trial = 0; trial < 16; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const stated = detail::with_mean_microbatch(middling_problem(random));
    constexpr double factor = 2;
    auto const factors = with_microbatch_factors(stated, equal_factors(stated, factor));
    auto const longer = with_longer_times(stated, factor);
    REQUIRE(longer.microbatch_factors().empty());
    CHECK(detail::with_mean_microbatch(factors) == longer);
    auto const bound = lower_bound(longer);
    CHECK(holds(lower_bound(factors), factors));
    // The rule of first waits takes microbatches of one size alone, and what memory admits before a
    // pass is counted with the longest F.
    if (stated.placement().is_linear()) {
      CHECK(lower_bound(factors) == bound);
      CHECK(staircase(factors).forwards == staircase(longer).forwards);
    } else {
      CHECK(lower_bound(factors).cost <= bound.cost);
    }
    if (trial % 4 != 0) continue;
    auto const found = brief_plan(factors);
    CHECK(cost(simulate(found.schedule, longer)) == found.cost);
    if (stated.placement().is_linear()) CHECK(found.schedule == brief_plan(longer).schedule);
    auto const raised = raise_bound(bound, found.cost, longer);
    CHECK(raise_bound(bound, found.cost, factors) == raised);
    better += raised.cost > bound.cost ? 1 : 0;
  }
  CHECK(better > 0);
}

TEST_CASE("no bound is above the cheapest order", "[factors][bounds]") {
  int proved = 0;
  int problems = 0;
  for (int trial = 0; trial < test::thinned(250, 100); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const placement = test::random_placement(random, test::tiny_placements::any);
    auto const m = static_cast<int>(random.integer(1, placement.stages() <= 4 ? 5 : 3));
    auto const alike = random.chance(0.3) ? test::tiny_problem_with_options(random, placement, m)
                                          : test::tiny_problem(random, placement, m);
    auto const problem = with_random_factors(alike, random);
    auto const best = test::find_optimum(problem, {.nodes = 20'000});
    if (!best.complete || !best.cost) continue;
    INFO("trial " << trial << ", " << placement.name() << ", m = " << m);
    ++problems;
    auto const bound = lower_bound(problem);
    CHECK(bound.cost <= *best.cost);
    CHECK(holds(bound, problem));
    auto const raised = raise_bound(bound, *best.cost, problem);
    CHECK(raised.cost <= *best.cost);
    CHECK(holds(raised, problem));
    proved += raised.cost == *best.cost ? 1 : 0;
    for (auto rule :
         {bound_rule::work, bound_rule::staircase, bound_rule::first_waits, bound_rule::windows})
      CHECK_FALSE(test::is_claimed(rule, *best.cost + 1, problem));
    for (int through = 0; through < problem.ranks(); ++through)
      for (int rank = 0; rank < problem.ranks(); ++rank)
        CHECK_FALSE(holds({*best.cost + 1, bound_rule::path, rank, through}, problem));
  }
  CHECK(problems > test::thinned(170, 60));
  CHECK(2 * proved > problems);
}

TEST_CASE(
    "a search is never worse than a handcrafted order, nor better than its bound",
    "[factors][long]") {
  auto const policies = test::grid_policies();
  double saved = 0;
  int problems = 0;
  int worse = 0;
  for (int trial = 0; trial < test::thinned(12, 4); ++trial) {
    ZBPP_SEEDED(random, 5000 + trial);
    auto const problem = middling_problem(random);
    INFO(
        "trial " << trial << ", " << problem.placement().name()
                 << ", m = " << problem.microbatches());
    auto const found = brief_plan(problem, 0.02);
    CHECK(cost(simulate(found.schedule, problem)) == found.cost);
    CHECK(found.bound.cost <= found.cost);
    CHECK(holds(found.bound, problem));
    for (auto const& policy : policies) {
      if (!test::is_supported(policy, problem) || policy.searches()) continue;
      auto const order = policy(problem);
      if (detail::is_within_limits(order, problem))
        CHECK(found.cost <= cost(simulate(order, problem)));
    }
    // What planning by the mean factor costs.
    auto const by_mean = brief_plan(detail::with_mean_microbatch(problem), 0.02);
    auto const taken = cost(simulate(by_mean.schedule, problem));
    saved += 1 - static_cast<double>(found.cost) / static_cast<double>(taken);
    worse += found.cost > taken ? 1 : 0;
    ++problems;
  }
  auto const mean = saved / problems;
  INFO("in the mean " << 100 * mean << " % less than by the mean factor, more in " << worse);
  CHECK(mean > 0.05);
  CHECK(worse <= 1);
}

TEST_CASE("layers are cut with the factors, for searches and policies alike", "[factors]") {
  int fitting = 0;
  double saved = 0;
  for (int trial = 0; trial < test::thinned(30, 6); ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const placement = test::random_placement(random);
    auto const count = placement.stages() + static_cast<int>(random.integer(0, 6));
    auto const m = static_cast<int>(random.integer(1, 10));
    auto const alike = test::random_model(random, placement, count, m, trial % 2 == 0);
    auto const model = with_random_factors(alike, random);
    plan_choices choices{.seconds = 0.01};
    if (trial % 3 == 0) choices.placement = placement;
    if (trial % 5 == 0) choices.policy = greedy_auto{};
    if (trial % 5 == 0) choices.most_cuts = 20;
    auto const found = test::try_plan(model, choices);
    if (!found) continue;
    ++fitting;
    test::check_plan(*found, model);
    CHECK(std::ranges::equal(found->problem.microbatch_factors(), model.microbatch_factors()));
    CHECK(find_plan(model, choices) == *found);
    // The same cut and order as planned for the mean factor, where that fits.
    auto by_mean = test::try_plan(detail::with_mean_microbatch(alike), choices);
    if (!by_mean) continue;
    auto const same = with_microbatch_factors(
        by_mean->problem, {model.microbatch_factors().begin(), model.microbatch_factors().end()});
    auto const taken = cost(simulate(by_mean->schedule, same));
    saved += static_cast<double>(taken - found->cost) / static_cast<double>(taken);
  }
  CAPTURE(fitting, saved);
  CHECK(fitting > test::thinned(15, 2));
  CHECK(saved >= 0);
}

TEST_CASE("equal factors are longer times of layers, too", "[factors]") {
  for (int trial = 0; trial < test::thinned(12, 4); ++trial) {
    ZBPP_SEEDED(random, trial);
    std::vector<layer_costs> layers = test::random_layers(random, 8);
    problem const alike(layers, {.ranks = 3, .microbatches = 6});
    for (auto& c : layers) c = times_factor(c, 2);
    auto const longer = with_layers(alike, layers);
    auto const found = find_plan(longer, {.seconds = 0.01});
    auto const with_factors =
        find_plan(with_microbatch_factors(alike, equal_factors(alike, 2)), {.seconds = 0.01});
    CHECK(cost(simulate(with_factors.schedule, with_factors.problem)) == with_factors.cost);
    CHECK(with_factors.lower_bound <= found.cost);
    CHECK(found.lower_bound <= with_factors.cost);
  }
}

TEST_CASE("measured times are divided by the factors of their microbatches", "[factors]") {
  stage_costs const stage{
      .forward = 4000,
      .backward_input = 5000,
      .backward_weight = 3000,
      .backward_fused = 7000,
      .overlapped = 6000};
  auto const truth = with_microbatch_factors(
      problem(placement::linear(3), 7, stage, 100), {1, 0.25, 0.5, 2, 1, 0.125, 4});
  auto other = stage;
  other.forward = other.overlapped.emplace(9000);
  auto const stated = with_stages(truth, std::vector<stage_costs>(3, other));
  for (bool const is_fused : {false, true}) {
    auto const order = is_fused ? one_f_one_b{}(truth) : zb_h1{}(truth);
    std::vector const steps(4, simulate(order, truth));
    auto const found = costs_from(steps, stated);
    CHECK(std::ranges::equal(found.microbatch_factors(), truth.microbatch_factors()));
    for (int s = 0; s < 3; ++s) {
      CHECK(found.costs(s).forward == 4000);
      CHECK(
          found.costs(s).of(is_fused ? pass_kind::backward : pass_kind::backward_input) ==
          (is_fused ? 7000 : 5000));
    }
    for (auto const& one : profile(steps, truth, {.first_steps = 1}).passes) {
      CHECK(one.took.least == truth.costs(one.stage).of(one.kind));
      CHECK(one.took.most == one.took.least);
    }
  }
  // A pair hides what the smaller microbatch can.
  schedule const paired(
      placement::linear(1),
      2,
      std::vector<std::vector<pass>>{
          {{pass_kind::forward, 0, 0},
           {pass_kind::forward, 0, 1},
           {pass_kind::backward_input, 0, 0, true},
           {pass_kind::backward_weight, 0, 0},
           {pass_kind::backward_input, 0, 1},
           {pass_kind::backward_weight, 0, 1}}});
  auto const one = with_microbatch_factors(problem(placement::linear(1), 2, stage), {0.5, 2});
  auto const unknown = with_stages(one, {other});
  CHECK(
      costs_from(std::vector{simulate(paired, one)}, unknown).costs(0).overlapped ==
      stage.overlapped);
}

}  // namespace test_microbatch_factors
