// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/costs_from.hpp>
// What the checks need besides.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <support/catch.hpp>
#include <support/plan_grid.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace test_costs_from {

using namespace zbpp;
using namespace zbpp::test;

namespace {

// Costs with all that a step cannot tell, and times from 1.
stage_costs random_stage(seeded_random& random) {
  auto costs = zbpp::test::uneven_costs();
  costs.forward = random.integer(1, 1000);
  costs.backward_input = random.integer(1, 1000);
  costs.backward_weight = random.integer(1, 1000);
  costs.backward_fused = random.integer(
      std::max(costs.backward_input, costs.backward_weight),
      costs.backward_input + costs.backward_weight);
  costs.recompute = random.integer(1, 1000);
  costs.activation = random.integer(1000, 2000);
  return costs;
}

problem random_problem(seeded_random& random, placement const& placement, int microbatches) {
  std::vector<stage_costs> costs;
  for (int s = 0; s < placement.stages(); ++s) costs.push_back(random_stage(random));
  return {placement, microbatches, std::move(costs), zbpp::transfer_costs(7), {1'000'000}};
}

// The same problem with other times, as a user may have stated it.
problem with_times(problem const& of, ticks time) {
  std::vector<stage_costs> costs(of.all_costs().begin(), of.all_costs().end());
  for (auto& each : costs) {
    each.forward = each.backward_input = each.backward_weight = time;
    each.backward_fused = each.recompute = time;
  }
  std::vector<zbpp::bytes> const limits(of.memory_limits().begin(), of.memory_limits().end());
  return {of.placement(), of.microbatches(), std::move(costs), of.transfer(), limits};
}

timeline one_row(std::vector<timed_pass> const& passes) {
  timeline made;
  for (auto const& timed : passes) made.push(timed);
  made.end_row();
  return made;
}

// A problem of one stage with one microbatch, and the costs that a step of it gives.
stage_costs costs_of_step(stage_costs const& stated, std::vector<timed_pass> const& passes) {
  problem const one(placement::linear(1), 9, stated);
  return costs_from(std::vector{one_row(passes)}, one).costs(0);
}

}  // namespace

TEST_CASE("the costs of a simulated step are those that it was simulated with", "[costs_from]") {
  seeded_random random(run_seed());
  int plans = 0;
  int whole = 0;
  for (int ranks : {1, 2, 3})
    for (auto const& placement : zbpp::test::placements_to_run(ranks)) {
      auto const truth = random_problem(random, placement, 2 * ranks + 1);
      zbpp::test::for_each_plan_of(
          truth, {.recomputed = true}, [&](std::string const& name, zbpp::plan const& planned) {
            INFO(name);
            std::vector<timeline> const steps(3, zbpp::simulate(planned.schedule(), truth));
            auto const found = costs_from(steps, with_times(truth, 5));
            bool tells_all = true;
            for (int stage = 0; stage < placement.stages(); ++stage) {
              auto const ran = [&](pass_kind kind) {
                auto const all = steps.front().all();
                return std::any_of(all.begin(), all.end(), [&](timed_pass const& timed) {
                  return timed.pass.kind == kind && timed.pass.stage == stage;
                });
              };
              auto const& want = truth.costs(stage);
              auto const& got = found.costs(stage);
              CHECK(got.forward == want.forward);
              CHECK(got.recompute.value() == (ran(pass_kind::recompute) ? *want.recompute : 5));
              if (ran(pass_kind::backward_weight)) {
                CHECK(got.backward_input == want.backward_input);
                CHECK(got.backward_weight == want.backward_weight);
                if (ran(pass_kind::backward))
                  CHECK(got.backward_fused.value() == *want.backward_fused);
              } else {
                tells_all = false;
                CHECK(got.backward_fused.value() == *want.backward_fused);
              }
              CHECK(got.activation == want.activation);
              CHECK(got.edge == want.edge);
            }
            CHECK(found.transfer() == truth.transfer());
            CHECK(found.memory_limits().front() == 1'000'000);
            // A stage that ran BW alone leaves B and W open, and no pass of this order needs them.
            if (tells_all) ++whole;
            CHECK(zbpp::simulate(planned.schedule(), found) == steps.front());
            ++plans;
          });
    }
  CHECK(plans > 20);
  CHECK((whole > 0 && whole < plans));
}

TEST_CASE("a time is the median of all steps", "[costs_from]") {
  seeded_random random(run_seed());
  problem const truth(placement::linear(2), 5, stage_costs{.forward = 100, .backward_input = 1});
  auto const order = zbpp::zb_h1{}(truth);
  std::vector<timeline> steps(3, zbpp::simulate(order, truth));
  // Fewer than half of the samples of each stage and kind are wrong, by any amount.
  for (auto& timed : steps.front()[1]) timed.end += random.integer(0, 1'000'000);
  CHECK(costs_from(steps, with_times(truth, 1)).costs(1).forward == 100);
}

TEST_CASE("what did not run keeps its proportion", "[costs_from]") {
  stage_costs const stated{
      .forward = 10, .backward_input = 20, .backward_weight = 10, .backward_fused = 24};
  timed_pass const backward{{pass_kind::backward, 0, 0}, 0, 48};
  auto const doubled = costs_of_step(stated, {backward});
  CHECK(doubled.forward == 10);
  CHECK(doubled.backward_input == 40);
  CHECK(doubled.backward_weight == 20);
  CHECK(doubled.backward_fused == 48);

  std::vector<timed_pass> const apart{
      {{pass_kind::backward_input, 0, 0}, 0, 10}, {{pass_kind::backward_weight, 0, 0}, 10, 15}};
  CHECK(costs_of_step(stated, apart).backward_fused == 12);

  auto const nothing_stated = costs_of_step({}, {backward});
  CHECK(nothing_stated.backward_input == 24);
  CHECK(nothing_stated.backward_weight == 24);

  // A BW that took longer than both, or less than one of them, is kept within what costs may say.
  auto with_backward = apart;
  with_backward.push_back({{pass_kind::backward, 0, 1}, 20, 90});
  CHECK(costs_of_step(stated, with_backward).backward_fused == 15);
  with_backward.back().end = 21;
  CHECK(costs_of_step(stated, with_backward).backward_fused == 10);
}

TEST_CASE("ranks that ran elsewhere keep their times", "[costs_from]") {
  problem const truth(placement::linear(2), 4, stage_costs{.forward = 100});
  auto rows = zbpp::simulate(zbpp::one_f_one_b{}(truth), truth).nested();
  rows[0].clear();
  auto const found = costs_from(std::vector{timeline(rows)}, with_times(truth, 9));
  CHECK(found.costs(0).forward == 9);
  CHECK(found.costs(1).forward == 100);
}

TEST_CASE("steps that are not of the problem are refused", "[costs_from]") {
  problem const one(placement::linear(1), 2, stage_costs{});
  auto const refused = [&](timed_pass const& timed) {
    return refusal([&] { static_cast<void>(costs_from(std::vector{one_row({timed})}, one)); });
  };
  CHECK_THAT(
      refusal([&] { static_cast<void>(costs_from({}, one)); }),
      Catch::Contains("costs_from got no measured step"));
  CHECK_THAT(
      refused({{pass_kind::forward, 1, 0}, 0, 1}),
      Catch::Contains("holds 1F0, which the problem does not have: its stages are 0 to 0, its "
                      "microbatches 0 to 1"));
  CHECK_THAT(refused({{pass_kind::forward, 0, 2}, 0, 1}), Catch::Contains("holds 0F2, which the"));
  CHECK_THAT(
      refused({{pass_kind::forward, 0, -1}, 0, 1}), Catch::Contains("holds 0F-1, which the"));
  CHECK_THAT(
      refused({{pass_kind::forward, 0, 0}, 2, 1}), Catch::Contains("which ends before it starts"));
  CHECK_THAT(
      refused({{pass_kind::recompute, 0, 0}, 0, 1}),
      Catch::Contains("the problem's stage has no recompute"));
}

}  // namespace test_costs_from
