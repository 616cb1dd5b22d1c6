// SPDX-License-Identifier: Apache-2.0
//
// What several steps take: as simulated, and as a pipeline runs them under virtual time.
#include <zbpp/analysis/period.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/steps.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/plan_grid.hpp>
#include <support/random_problem.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace test_steps {

using namespace zbpp;
using namespace zbpp::test;

namespace {

constexpr auto agreed = {step_kind::synchronous, step_kind::post_validated};

// Uneven costs with those of optimizer steps, each of which may be 0.
problem with_random_times(seeded_random& random, problem const& shape) {
  std::vector<stage_costs> all;
  auto const ties = random.chance(0.5);
  for (int s = 0; s < shape.stages(); ++s) {
    auto costs = checked::costs();
    costs.forward = random.integer(0, 9);
    costs.backward_input = random.integer(0, 9);
    costs.backward_weight = random.integer(0, 9);
    costs.backward_fused.reset();
    costs.norm = random.integer(0, 3);
    costs.optimizer_step = random.integer(0, 12);
    if (ties && random.chance(0.4)) costs.tied = sizeof(checked::matrix);
    all.push_back(costs);
  }
  transfer_costs const transfer = random.chance(0.5) ? transfer_costs(random.integer(0, 4))
                                                     : random_transfer(random, shape.ranks());
  return {shape.placement(), shape.microbatches(), std::move(all), transfer};
}

// The same for pipelines that train beside others like them.
problem with_random_replicas(seeded_random& random, problem const& alone) {
  std::vector<stage_costs> all(alone.all_costs().begin(), alone.all_costs().end());
  for (std::size_t s = 0; s < all.size(); ++s)
    all[s].gradients = static_cast<bytes>((1 + s % 2) * sizeof(checked::matrix));
  return with_replicas(
      with_stages(alone, all),
      {.count = static_cast<int>(random.integer(2, 3)),
       .latency = random.integer(0, 5),
       .time_per_byte = random.real(0, 0.2)});
}

// The same where replicas share the steps.
problem with_shared_steps(problem const& alone) {
  auto costs = alone.replicas();
  costs.shards_optimizer = true;
  return with_replicas(alone, costs);
}

// Runs steps under virtual time, and puts what each gave in rows.
simulated_steps run(plan const& planned, int count, virtual_time const& backend = {}) {
  checked::model all(
      {.stages = planned.problem().stages(), .tied = planned.problem().tied_stages()});
  pipeline pipe(planned, backend, all.stages());
  auto const ranks = static_cast<std::size_t>(planned.problem().ranks());
  std::vector<std::vector<timed_pass>> lines(ranks);
  std::vector<std::vector<rank_update>> updates(ranks);
  pipe.run(count, [&](step_result const& step) {
    for (std::size_t r = 0; r < ranks; ++r) {
      auto const row = step.measured[static_cast<int>(r)];
      lines[r].insert(lines[r].end(), row.begin(), row.end());
      updates[r].push_back(step.ranks[r]);
    }
  });
  return {timeline(lines), rows<rank_update>(updates)};
}

template <class Visit>
void for_each_random_case(Visit visit) {
  for (int ranks : thinned<std::vector<int>>({1, 2, 3, 4}, {1, 3}))
    for (auto const& placement : placements_to_run(ranks))
      for (int microbatches : microbatches_to_run(ranks))
        for (auto const& policy : grid_policies()) {
          problem const shape(placement, microbatches, checked::costs());
          if (!is_supported(policy, shape)) continue;
          ZBPP_SEEDED(random, 100 * ranks + microbatches);
          INFO(name_of(policy, shape));
          visit(policy(shape), with_random_times(random, shape));
        }
}

}  // namespace

TEST_CASE("steps under virtual time take what simulate_steps says, to the tick", "[steps]") {
  int cases = 0;
  for_each_random_case([&](schedule const& order, problem const& problem) {
    for (auto const kind : agreed) {
      auto const planned = make_plan("tested", order, problem, {.step = kind});
      auto const said = simulate_steps(planned.program(), problem, 4);
      auto const found = run(planned, 4);
      CHECK(found.line == said.line);
      CHECK(found.updates == said.updates);
      ++cases;
    }
    // The first ranks go on at once, and some stages step while their ranks wait.
    std::vector<int> at_once;
    for (int s = 0; s < problem.stages(); ++s)
      if (problem.costs(s).tied == 0 && (s == 0 || s + 1 < problem.ranks() || s % 3 == 0))
        at_once.push_back(s);
    auto const planned =
        make_plan("tested", order, problem, {.step = step_kind::synchronous, .at_once = at_once});
    auto const said = simulate_steps(planned.program(), problem, 4);
    auto const found = run(planned, 4);
    CHECK(found.line == said.line);
    CHECK(found.updates == said.updates);
  });
  CHECK(cases > thinned(200, 60));
}

TEST_CASE("sums over replicas take what simulate_steps says, beside passes", "[steps]") {
  int cases = 0;
  int hidden = 0;  // sums that end before the last pass of their rank
  for_each_random_case([&](schedule const& order, problem const& alone) {
    ZBPP_SEEDED(random, ++cases);
    auto const replicated = with_random_replicas(random, alone);
    for (auto const kind : agreed) {
      bool const is_shared = kind == step_kind::synchronous && alone.tied_stages().empty();
      auto const problem = is_shared ? with_shared_steps(replicated) : replicated;
      auto const planned = make_plan("tested", order, problem, {.step = kind});
      auto const said = simulate_steps(planned.program(), problem, 3);
      in_process_grid whole({.pipeline = problem.ranks(), .data = problem.replicas().count});
      std::vector<simulated_steps> found(static_cast<std::size_t>(problem.replicas().count));
      whole.run([&](grid_place const& at) {
        found[static_cast<std::size_t>(at.data())] = run(planned, 3, {.place = at});
      });
      for (auto const& each : found) {
        CHECK(each.line == said.line);
        CHECK(each.updates == said.updates);
      }
      auto const without =
          simulate_steps(lower(order, {.step = kind, .tied = problem.tied_stages()}), problem, 3);
      CHECK(said.end >= without.end);
      hidden += said.end == without.end ? 1 : 0;
    }
  });
  CHECK(cases > thinned(100, 30));
  CHECK(hidden >= thinned(1, 0));
}

TEST_CASE("the first step's passes are those of simulate", "[steps]") {
  for_each_random_case([&](schedule const& order, problem const& problem) {
    auto const alone = lower(order, {.step = step_kind::none});
    auto const said = simulate_steps(alone, problem, 1);
    CHECK(said.line == simulate(order, problem));
    CHECK(said.end == makespan(said.line));
    CHECK(said.updates.all().empty());
  });
}

TEST_CASE("ranks that agree on nothing meet after each step", "[steps]") {
  stage_costs const costs{
      .forward = 3, .backward_input = 2, .backward_weight = 1, .norm = 50, .optimizer_step = 7};
  problem const problem(placement::linear(2), 2, costs);
  auto const order = one_f_one_b{}(problem);
  auto const alone = makespan(simulate(order, problem));
  for (auto const kind : {step_kind::none, step_kind::unchecked}) {
    auto const code = lower(order, {.step = kind});
    auto const times = times_of_steps(code, problem);
    // The last of all to step is rank 0, which has the last W.
    CHECK(times.alone == alone + (kind == step_kind::none ? 0 : 7));
    CHECK(times.steady == mean_ticks{times.alone});
    CHECK(simulate_steps(code, problem, 5).end == 5 * times.alone);
  }
}

// The verdict travels in the next step, so it may come later than one that all wait for.
TEST_CASE("validating afterwards seldom takes longer in the long run", "[steps]") {
  int shorter = 0;
  int longer = 0;
  for_each_random_case([&](schedule const& order, problem const& problem) {
    auto const of = [&](step_kind kind) {
      return times_of_steps(lower(order, {.step = kind, .tied = problem.tied_stages()}), problem);
    };
    auto const waiting = of(step_kind::synchronous);
    auto const late = of(step_kind::post_validated);
    CHECK(period(order, problem).period <= late.steady);
    CHECK(period(order, problem).period <= waiting.steady);
    CHECK(waiting.steady <= mean_ticks{waiting.alone});
    shorter += late.steady < waiting.steady ? 1 : 0;
    longer += late.steady > waiting.steady ? 1 : 0;
  });
  CAPTURE(shorter, longer);
  CHECK(shorter > 20 * longer);
}

TEST_CASE("first ranks that step at once take no longer than those that wait", "[steps]") {
  stage_costs const costs{
      .forward = 1000, .backward_input = 1000, .backward_weight = 1000, .optimizer_step = 500};
  problem const problem(placement::linear(4), 12, costs, 10);
  auto const order = zb_h2{}(problem);
  auto const steady = [&](lower_options const& options) {
    return times_of_steps(lower(order, options), problem).steady.whole;
  };
  auto const waiting = steady({.step = step_kind::synchronous});
  auto const hybrid = steady({.step = step_kind::synchronous, .at_once = {0, 1, 2}});
  auto const late = steady({.step = step_kind::post_validated});
  CAPTURE(waiting, hybrid, late);
  CHECK(hybrid < waiting);
  CHECK(late <= hybrid);
}

TEST_CASE("many steps take as long as the steady one says", "[steps]") {
  for_each_random_case([&](schedule const& order, problem const& problem) {
    for (auto const kind : agreed) {
      auto const code = lower(order, {.step = kind, .tied = problem.tied_stages()});
      auto const steady = times_of_steps(code, problem).steady;
      auto const few = simulate_steps(code, problem, 20);
      auto const many = simulate_steps(code, problem, 20 + 12 * steady.of);
      auto const said = 12 * (steady.whole * steady.of + steady.part);
      // Where the ranks begin differently, the sums differ by less than a step.
      CHECK(std::abs(many.end - few.end - said) <= steady.whole);
    }
  });
}

TEST_CASE("steps that cannot be simulated are refused", "[steps]") {
  problem const model(placement::linear(2), 2, checked::costs());
  auto const order = one_f_one_b{}(model);
  auto const code = lower(order, {.step = step_kind::synchronous});
  CHECK(refusal([&] {
          (void)simulate_steps(code, model, 0);
        }) == "simulate_steps takes a number of steps from 1");
  problem const other(placement::linear(2), 3, checked::costs());
  CHECK(refusal([&] {
          (void)times_of_steps(code, other);
        }).find("another number") != std::string::npos);
  auto rows = code.instructions().nested();
  std::erase_if(
      rows[0], [](instruction const& i) { return i.kind == instruction_kind::reduce_norm; });
  program const broken(model.placement(), 2, zbpp::rows<instruction>(rows), code.channels());
  auto const said = refusal([&] { (void)simulate_steps(broken, model, 1); });
  CHECK(said.find(verify(broken).front().text) != std::string::npos);
  problem const slow(placement::linear(2), 2, stage_costs{.forward = ticks{1} << 58});
  CHECK(refusal([&] { (void)simulate_steps(code, slow, 1000); }).find("2^62") != std::string::npos);
  CHECK_NOTHROW(times_of_steps(code, slow));
}

}  // namespace test_steps
