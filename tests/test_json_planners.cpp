// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/json/planners.hpp>
#include <zbpp/planner/registry.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>

#include <string>
#include <utility>
#include <vector>

namespace test_json_planners {

using zbpp::json::planner_scope;
using zbpp::test::refusal;

zbpp::problem small(std::vector<zbpp::bytes> limits = {}) {
  return {
      zbpp::placement::linear(2),
      4,
      std::vector<zbpp::stage_costs>(
          2,
          {.forward = 10,
           .backward_input = 10,
           .backward_weight = 10,
           .activation = 10,
           .weight_gradient_input = 5}),
      0,
      std::move(limits)};
}

TEST_CASE("every policy is a planner, and a title names the same one", "[json]") {
  auto const all = zbpp::json::planners();
  for (auto const& policy : zbpp::builtin_policies()) {
    INFO(policy.name());
    auto const found = zbpp::json::find_planner(policy.title());
    CHECK(found.name == policy.name());
    CHECK(found.scope == planner_scope::order);
    CHECK(found.searches == policy.searches());
  }
  CHECK(all.size() == zbpp::builtin_policies().size() + 2);
  CHECK(zbpp::json::find_planner("auto-placement").scope == planner_scope::placement);
  CHECK(zbpp::json::find_planner("auto_plan").scope == planner_scope::layers);
}

TEST_CASE("a planner does what its policy does, and reports it", "[json]") {
  auto const asked = small();
  auto const plan = zbpp::json::plan_problem(asked, "zb_h1");
  CHECK(plan.policy == "ZB-H1");
  CHECK(plan.schedule == zbpp::find_policy(zbpp::builtin_policies(), "zb_h1")(asked));
  CHECK(plan.cost == zbpp::cost(zbpp::simulate(plan.schedule, asked)));
  auto const placed = zbpp::json::plan_problem(asked, "auto_placement", {.seconds = 0.01});
  CHECK(placed.cost <= plan.cost);
}

TEST_CASE("planners are refused by name", "[json]") {
  CHECK(refusal([] {
          static_cast<void>(zbpp::json::find_planner("fastest"));
        }).find("no policy is called 'fastest'; there are gpipe") != std::string::npos);
  CHECK(refusal([] {
          static_cast<void>(zbpp::json::plan_problem(small(), "auto_plan"));
        }) == "auto_plan needs layers; state the model as layers, not as stages");
  CHECK(
      refusal(
          zbpp::errc::unsupported_problem,
          [] { check_limits(zbpp::json::plan_problem(small({20}), "gpipe")); }) ==
      "rank 0: GPipe needs 40, its limit is 20; the least limit that works for it on every rank is "
      "40");
}

}  // namespace test_json_planners
