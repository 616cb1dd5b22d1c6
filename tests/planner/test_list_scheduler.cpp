// SPDX-License-Identifier: Apache-2.0
#include <zbpp/planner/detail/list_scheduler.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/planner/detail/rule_search.hpp>

#include <support/catch.hpp>
#include <support/count_allocations.hpp>
#include <support/random_rules.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace test_list_scheduler {

using zbpp::placement;
using zbpp::problem;
using zbpp::stage_costs;
using zbpp::detail::list_scheduler;
using zbpp::detail::never;
using zbpp::detail::planner_rules;
using zbpp::detail::rank_rule;
using zbpp::test::some_trial;

TEST_CASE(
    "whatever the rules, a schedule is valid and costs what simulate says", "[planner][long]") {
  int ended = 0;
  for (int i = 0; i < 3000; ++i) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(i % 1500));
    auto const [problem, rules] = some_trial(random, true, i >= 1500);
    list_scheduler engine(problem);
    auto const found = engine.run(rules);
    if (found == never) {
      // Only a warm-up that is over before the first B can be back keeps a schedule from its end.
      bool const is_limited =
          std::any_of(rules.ranks.begin(), rules.ranks.end(), [](rank_rule const& r) {
            return r.warm_up != rank_rule::no_limit;
          });
      CHECK(is_limited);
      continue;
    }
    ++ended;
    auto const order = engine.order();
    CHECK(cost(zbpp::simulate(order, problem)) == found);
    auto const faults = verify(zbpp::lower(order), problem);
    INFO((faults.empty() ? std::string() : to_string(faults.front())));
    CHECK(faults.empty());
    CHECK(engine.placed() == order.passes().size());
  }
  CHECK(ended > 2000);
}

TEST_CASE("a schedule follows an order of F and B that is settled", "[planner]") {
  for (int i = 0; i < 600; ++i) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(i % 300));
    auto [problem, rules] = some_trial(random, false, i >= 300);
    list_scheduler engine(problem);
    REQUIRE(engine.run(rules) != never);
    rules.fb_orders = zbpp::detail::fb_orders_of(engine.order());
    auto const found = engine.run(rules);
    REQUIRE(found != never);
    auto const order = engine.order();
    CHECK(zbpp::detail::fb_orders_of(order) == rules.fb_orders);
    CHECK(cost(zbpp::simulate(order, problem)) == found);
    CHECK(verify(zbpp::lower(order), problem).empty());
  }
}

TEST_CASE("a run gives up where the cost is more than asked for, and only there", "[planner]") {
  for (int i = 0; i < 300; ++i) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(i));
    auto const [problem, rules] = some_trial(random, false);
    list_scheduler engine(problem);
    auto const found = engine.run(rules);
    REQUIRE(found != never);
    CHECK(engine.run(rules, found) == found);
    if (found > 0) CHECK(engine.run(rules, found - 1) == never);
    CHECK(engine.run(rules) == found);
  }
}

TEST_CASE("an order in which a rank waits for itself ends as never", "[planner]") {
  problem const problem(placement::linear(2), 2, stage_costs{.forward = 1});
  planner_rules rules(2, 2);
  rules.fb_orders = {{1, 0, 1, 0}, {0, 1, 0, 1}};  // rank 0 begins with a B
  CHECK(list_scheduler(problem).run(rules) == never);
}

TEST_CASE(
    "a rank waits for an F of a later stage that is due, where its rule says so", "[planner]") {
  stage_costs const costs{.forward = 10, .backward_input = 10, .backward_weight = 10};
  problem const problem(placement::looped(2, 2), 4, costs, 3);
  list_scheduler engine(problem);
  // The first F of stage 2 could start at 26: two F and two transfers after the start of rank 0.
  auto const first_deep_forward = [&](zbpp::ticks wait) {
    planner_rules rules(2, 4);
    rules.ranks[0].wait_for_deep_forward = wait;
    REQUIRE(engine.run(rules) != never);
    auto const times = zbpp::simulate(engine.order(), problem);
    return std::ranges::find(times[0], 2, [](auto const& timed) { return timed.pass.stage; })
        ->start;
  };
  CHECK(first_deep_forward(0) == 30);  // behind the third F of stage 0, which starts at 20
  CHECK(first_deep_forward(6) == 30);
  CHECK(first_deep_forward(7) == 26);
  CHECK(first_deep_forward(100) == 26);
}

TEST_CASE("memory that is set aside is not used", "[planner]") {
  stage_costs const costs{
      .forward = 1, .backward_input = 1, .backward_weight = 1, .activation = 10};
  problem const problem(placement::linear(3), 9, costs, 0, {60});
  list_scheduler engine(problem, {0, 30, 0});
  REQUIRE(engine.run(planner_rules(3, 3)) != never);
  auto const peaks = peak_activations(engine.order(), problem);
  CHECK(peaks[0] > 30);
  CHECK(peaks[1] == 30);
}

TEST_CASE("a run allocates nothing", "[planner]") {
  ZBPP_SEEDED(random, 3);
  auto const made = some_trial(random, false);
  auto const& rules = made.rules;
  list_scheduler engine(made.problem);
  static_cast<void>(engine.run(rules));
  zbpp::ticks found = never;
  CHECK(zbpp::test::count_allocations([&] { found = engine.run(rules); }) == 0);
  CHECK(found != never);
}

}  // namespace test_list_scheduler
