// SPDX-License-Identifier: Apache-2.0
//
// When sums over replicas go on, how short a step with them can be, and the order of the last W
// that hides most of them.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/reductions.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/steps.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/planner/greedy_auto.hpp>

#include <support/catch.hpp>
#include <support/plan_grid.hpp>
#include <support/random_problem.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace test_reductions {

using namespace zbpp::test;
using zbpp::cost_with_reductions;
using zbpp::end_stages_in_turn;
using zbpp::pass;
using zbpp::pass_kind;
using zbpp::placement;
using zbpp::problem;
using zbpp::reductions_of;
using zbpp::schedule;
using zbpp::stage_costs;
using zbpp::ticks;

namespace {

problem random_problem(seeded_random& random, placement const& placement, int microbatches) {
  std::vector<stage_costs> all;
  for (int s = 0; s < placement.stages(); ++s) {
    stage_costs costs{
        .forward = random.integer(0, 9),
        .backward_input = random.integer(0, 9),
        .backward_weight = random.integer(0, 9),
        .gradients = random.integer(0, 60)};
    if (random.chance(0.3)) costs.overlapped = std::max(costs.forward, costs.backward_input);
    all.push_back(costs);
  }
  return zbpp::with_replicas(
      problem{placement, microbatches, std::move(all), random.integer(0, 3)},
      {.count = static_cast<int>(random.integer(1, 4)),
       .latency = random.integer(0, 6),
       .time_per_byte = random.real(0, 1)});
}

template <class Visit>
void for_each_random_order(Visit visit) {
  int stream = 0;
  for (int ranks : thinned<std::vector<int>>({1, 2, 3, 4}, {1, 3}))
    for (auto const& placement : placements_to_run(ranks))
      for (int microbatches : microbatches_to_run(ranks))
        for (auto const& policy : grid_policies()) {
          ZBPP_SEEDED(random, ++stream);
          auto const problem = random_problem(random, placement, microbatches);
          if (!is_supported(policy, problem)) continue;
          INFO(name_of(policy, problem));
          visit(policy(problem), problem);
        }
}

// The W at the end of a row, behind which nothing stands.
std::size_t begin_of_end(std::vector<pass> const& row) {
  auto begin = row.size();
  while (begin > 0 && row[begin - 1].kind == pass_kind::backward_weight) --begin;
  return begin;
}

schedule with_rows(schedule const& order, std::vector<std::vector<pass>> const& rows) {
  return {order.placement(), order.microbatches(), zbpp::rows<pass>(rows)};
}

}  // namespace

TEST_CASE("a step with sums over replicas takes what simulate_steps says", "[reductions]") {
  for_each_random_order([](schedule const& order, problem const& problem) {
    auto const line = simulate(order, problem);
    ticks end = makespan(line);
    auto const sums = reductions_of(line, problem);
    for (auto const& sum : sums.all()) end = std::max(end, sum.end);
    zbpp::lower_options const options{.reduces = problem.replicas().count > 1};
    CHECK(simulate_steps(zbpp::lower(order, options), problem, 1).end == end);
    CHECK(cost_with_reductions(line, problem) >= cost(line));
    if (problem.replicas().count == 1) {
      CHECK(cost_with_reductions(line, problem) == cost(line));
      CHECK(reductions_of(line, problem).all().empty());
    }
  });
}

TEST_CASE("no order takes less than the bound with sums over replicas", "[reductions]") {
  int reached = 0;
  int all = 0;
  for_each_random_order([&](schedule const& order, problem const& problem) {
    auto const bound = lower_bound_with_reductions(problem);
    CHECK(bound >= zbpp::lower_bound(problem).cost);
    auto const took =
        cost_with_reductions(simulate(end_stages_in_turn(order, problem), problem), problem);
    CHECK(took >= bound);
    reached += took == bound ? 1 : 0;
    ++all;
  });
  CAPTURE(reached, all);
  CHECK(10 * reached > all);
}

TEST_CASE("no order of the last W ends the sums of a rank earlier", "[reductions]") {
  int shorter = 0;
  for (int trial = 0; trial < thinned(300, 100); ++trial) {
    ZBPP_SEEDED(random, 1000 + trial);
    auto const chunks = static_cast<int>(random.integer(2, 3));
    auto const microbatches = static_cast<int>(random.integer(1, chunks == 2 ? 3 : 2));
    auto const problem = random_problem(random, placement::looped(1, chunks), microbatches);
    // All F and B, and some W among the B, in front of the W at the end.
    std::vector<pass> row;
    std::vector<pass> end;
    for (int s = 0; s < chunks; ++s)
      for (int m = 0; m < microbatches; ++m) row.push_back({pass_kind::forward, s, m});
    for (int s = chunks - 1; s >= 0; --s) {
      bool is_early = true;
      for (int m = 0; m < microbatches; ++m) {
        row.push_back({pass_kind::backward_input, s, m});
        is_early = is_early && s > 0 && random.chance(0.3);
        (is_early ? row : end).push_back({pass_kind::backward_weight, s, m});
      }
    }
    auto const front = row;
    row.insert(row.end(), end.begin(), end.end());
    schedule const order(
        problem.placement(), microbatches, zbpp::rows<pass>(std::vector<std::vector<pass>>{row}));
    auto const chosen = end_stages_in_turn(order, problem);
    auto const took = [&](schedule const& tried) {
      return cost_with_reductions(simulate(tried, problem), problem);
    };
    auto const best = took(chosen);
    shorter += best < took(order) ? 1 : 0;
    // Every order of the stages of these W, which keeps those of a stage in turn.
    std::vector<int> stages;
    for (auto const& w : end) stages.push_back(w.stage);
    std::ranges::sort(stages);
    do {
      auto tried = front;
      std::vector<std::size_t> taken(static_cast<std::size_t>(chunks), 0);
      for (int s : stages) {
        std::size_t skip = taken[static_cast<std::size_t>(s)]++;
        for (auto const& w : end)
          if (w.stage == s && skip-- == 0) {
            tried.push_back(w);
            break;
          }
      }
      REQUIRE(took(with_rows(order, {tried})) >= best);
    } while (std::ranges::next_permutation(stages).found);
  }
  CHECK(shorter > 10);
}

TEST_CASE("ordering the last W changes nothing else", "[reductions]") {
  for_each_random_order([](schedule const& order, problem const& problem) {
    auto const ended = end_stages_in_turn(order, problem);
    CHECK(cost(simulate(ended, problem)) == cost(simulate(order, problem)));
    CHECK(end_stages_in_turn(ended, problem) == ended);
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      std::vector<pass> const before(order.passes(rank).begin(), order.passes(rank).end());
      std::vector<pass> const behind(ended.passes(rank).begin(), ended.passes(rank).end());
      auto const begin = begin_of_end(before);
      REQUIRE(before.size() == behind.size());
      CHECK(std::equal(
          before.begin(), before.begin() + static_cast<std::ptrdiff_t>(begin), behind.begin()));
      CHECK(std::ranges::is_permutation(before, behind));
      for (int s = 0; s < problem.stages(); ++s) {
        auto const of_stage = [&](std::vector<pass> row) {
          std::erase_if(row, [&](pass const& p) { return p.stage != s; });
          return row;
        };
        CHECK(of_stage(before) == of_stage(behind));
      }
    }
    CHECK(
        verify(zbpp::lower(ended), problem).empty() == verify(zbpp::lower(order), problem).empty());
  });
}

TEST_CASE("searched orders end their stages in turn", "[reductions]") {
  for (int trial = 0; trial < 20; ++trial) {
    ZBPP_SEEDED(random, 2000 + trial);
    auto const problem = random_problem(random, placement::v_shape(2), 3);
    auto const order = zbpp::greedy_auto{.search = {.seconds = 0.002}}(problem);
    CHECK(end_stages_in_turn(order, problem) == order);
  }
}

TEST_CASE("under a limit W move only where all need the same workspace", "[reductions]") {
  std::vector<stage_costs> costs(
      2, {.forward = 2, .backward_input = 2, .backward_weight = 2, .gradients = 10});
  costs[1].gradients = 1;
  auto const with = [&](std::vector<zbpp::bytes> limits, zbpp::bytes workspace) {
    costs[1].workspace = workspace;
    return zbpp::with_replicas(
        problem{placement::looped(1, 2), 1, costs, 0, std::move(limits)},
        {.count = 2, .time_per_byte = 1});
  };
  std::vector<std::vector<pass>> const rows{
      {{pass_kind::forward, 0, 0},
       {pass_kind::forward, 1, 0},
       {pass_kind::backward_input, 1, 0},
       {pass_kind::backward_input, 0, 0},
       {pass_kind::backward_weight, 1, 0},
       {pass_kind::backward_weight, 0, 0}}};
  schedule const order(placement::looped(1, 2), 1, zbpp::rows<pass>(rows));
  auto const moves = [&](problem const& problem) {
    return end_stages_in_turn(order, problem) != order;
  };
  CHECK(moves(with({}, 8)));
  CHECK(moves(with({100}, 0)));
  CHECK_FALSE(moves(with({100}, 8)));
}

TEST_CASE("a picture shows sums over replicas as bars", "[reductions]") {
  stage_costs const costs{
      .forward = 1000, .backward_input = 1000, .backward_weight = 1000, .gradients = 2000};
  auto const problem = zbpp::with_replicas(
      zbpp::problem{placement::v_shape(2), 4, costs},
      {.count = 2, .latency = 100, .time_per_byte = 1});
  auto const planned = zbpp::make_plan(zbpp::zb_v{}, problem);
  auto const sums = reductions_of(planned.timeline(), problem);
  auto const text =
      zbpp::to_svg({{.name = "ZB-V", .line = planned.timeline(), .reductions = sums}});
  CHECK(sums.all().size() == 4);
  for (auto const& sum : sums.all())
    CHECK(
        text.find("gradients of stage " + std::to_string(sum.stage) + " over replicas: ") !=
        std::string::npos);
  CHECK(text.find("sum over replicas</text>") != std::string::npos);
  CHECK(zbpp::to_svg(planned.timeline()).find("replicas") == std::string::npos);
  auto wrong = zbpp::rows<zbpp::timed_reduction>(
      std::vector<std::vector<zbpp::timed_reduction>>{{{0, 5, 4}}, {}});
  CHECK(refusal([&] {
          static_cast<void>(
              zbpp::to_svg({{.name = "", .line = planned.timeline(), .reductions = wrong}}));
        }) == "reductions: each ends at or after its start, from 0 to 2^62 ns");
}

}  // namespace test_reductions
