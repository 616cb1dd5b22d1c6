// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/instructions.hpp>
#include <support/refusal.hpp>

#include <string>

namespace test_plan {

using namespace zbpp;
using zbpp::test::passes;

namespace {

problem small(placement const& placement = placement::linear(2)) {
  return {placement, 3, stage_costs{.forward = 3, .backward_input = 2, .backward_weight = 1}, 1};
}

}  // namespace

TEST_CASE("a plan holds what its policy, lowering and simulation make", "[plan]") {
  auto const problem = small();
  auto const plan = make_plan(zbpp::zb_h1{}, problem, {.receive_ahead = 1});
  CHECK(plan.policy() == "ZB-H1");
  CHECK(plan.problem() == problem);
  CHECK(plan.schedule() == zbpp::zb_h1{}(problem));
  CHECK(plan.program() == zbpp::lower(plan.schedule(), {.receive_ahead = 1}));
  CHECK(plan.program() != zbpp::lower(plan.schedule()));
  CHECK(plan.timeline() == zbpp::simulate(plan.schedule(), problem));
}

TEST_CASE("a policy from the registry makes the plan that its type makes", "[plan]") {
  auto const plan = make_plan(zbpp::find_policy("zb_h1"), small());
  CHECK(plan.policy() == "ZB-H1");
  CHECK(plan.schedule() == zbpp::zb_h1{}(small()));
}

TEST_CASE("a schedule from elsewhere becomes a plan under its own title", "[plan]") {
  problem const problem(placement::linear(1), 1, stage_costs{.forward = 5});
  auto const plan =
      make_plan("by hand", schedule(placement::linear(1), 1, passes({"0F0 0BW0"})), problem);
  CHECK(plan.policy() == "by hand");
  CHECK(makespan(plan.timeline()) == 5);
}

TEST_CASE("what cannot be planned is refused as the part that refuses it says", "[plan]") {
  CHECK(zbpp::test::refusal(zbpp::errc::unsupported_problem, [] {
          (void)make_plan(zbpp::gpipe{}, small(placement::v_shape(2)));
        }).rfind("GPipe needs", 0) == 0);
  CHECK(zbpp::test::refusal([] {
          (void)make_plan(zbpp::gpipe{}, small(), {.receive_ahead = -1});
        }) == "receive_ahead counts passes; it is at least 0");
  CHECK(
      zbpp::test::refusal(
          zbpp::errc::refused_program,
          [] {
            problem const problem(placement::linear(1), 1, stage_costs{});
            (void)make_plan(
                "by hand", schedule(problem.placement(), 1, passes({"0B0 0F0 0W0"})), problem);
          }) ==
      "rank 0, position 0, stage 0, microbatch 0: the program is refused, dependence: 0B0: it "
      "needs 0F0, which stands at 1");
}

}  // namespace test_plan
