// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/measure.hpp>
// What the checks need besides.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/plain_flow.hpp>
#include <support/refusal.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace test_measure {

using namespace zbpp;

namespace {

std::vector<stage_costs> uneven_stages() {
  std::vector<stage_costs> costs;
  for (int s = 0; s < 4; ++s)
    costs.push_back(
        {.forward = 100 + 10 * s,
         .backward_input = 150 - 5 * s,
         .backward_weight = 70 + s,
         .activation = 64,
         .edge = 16});
  return costs;
}

}  // namespace

TEST_CASE("a pipeline under virtual time measures the problem of its plan", "[measure]") {
  problem const right(placement::linear(4), 8, uneven_stages(), transfer_costs(13), {1000});
  std::vector<test::plain_flow> stages(4);
  pipeline pipe{make_plan(zb_h1{}, right), virtual_time{}, stages};
  CHECK(measure(pipe, {.first_steps = 1, .steps = 2}) == right);
  CHECK(measure(pipe, {.steps = 1, .has_separate_clocks = true}) == right);
  CHECK(pipe.steps() == 1 + 2 + 3 + 1);
}

TEST_CASE("threads measure each stage and keep what times do not tell", "[measure]") {
  problem const stated(placement::linear(4), 8, uneven_stages(), transfer_costs(13), {1000});
  std::vector<test::plain_flow> stages(4);
  pipeline pipe{make_plan(zb_h1{}, stated), threads{}, stages};
  auto const found = measure(pipe, {.load = std::chrono::milliseconds(1), .steps = 5});
  CHECK(pipe.steps() > 3 + 5);  // at least one step of load
  CHECK(found.placement() == stated.placement());
  CHECK(found.memory_limit(0) == 1000);
  for (int s = 0; s < 4; ++s) {
    CHECK(found.costs(s).activation == 64);
    CHECK(found.costs(s).forward >= 0);
  }
}

TEST_CASE("costs come from results of steps as from their timelines", "[measure]") {
  problem const right(placement::linear(4), 8, uneven_stages(), transfer_costs(13));
  std::vector<test::plain_flow> stages(4);
  pipeline pipe{make_plan(zb_h1{}, right), virtual_time{}, stages};
  auto const one = pipe.step();
  std::vector<step_result> const several{one, pipe.step()};
  problem const unknown(placement::linear(4), 8, stage_costs{.activation = 1});
  std::vector<timeline> const lines{one.measured, several.back().measured};
  CHECK(costs_from(one, unknown) == costs_from(lines, unknown));
  CHECK(costs_from(several, unknown) == costs_from(lines, unknown));
  CHECK(costs_from(one, unknown).costs(2).forward == 120);
}

TEST_CASE("options of measuring that are out of range are refused", "[measure]") {
  problem const stated(placement::linear(2), 2, stage_costs{.forward = 1}, transfer_costs(1));
  std::vector<test::plain_flow> stages(2);
  pipeline pipe{make_plan(one_f_one_b{}, stated), virtual_time{}, stages};
  auto const refused = [&](measure_options const& options) {
    return test::refusal([&] { static_cast<void>(measure(pipe, options)); });
  };
  CHECK(refused({.first_steps = 0}).find("at least 1 first step") != std::string::npos);
  CHECK(refused({.load = std::chrono::milliseconds(-1)}).find("load") != std::string::npos);
  CHECK(refused({.steps = 0}).find("at least 1 step is measured") != std::string::npos);
  CHECK(refused({.message_quantile = -0.1}).find("quantile") != std::string::npos);
}

}  // namespace test_measure
