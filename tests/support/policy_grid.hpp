// SPDX-License-Identifier: Apache-2.0
//
// Every policy on every shape: the grid over which simulation, lowering and verification are
// tested.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/registry.hpp>

#include <support/thinned.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Costs in which no two numbers are alike, so that mixing them up shows.
[[nodiscard]] inline stage_costs uneven_costs() {
  return {
      .forward = 1013,
      .backward_input = 991,
      .backward_weight = 499,
      .backward_fused = 1301,
      .recompute = 701,
      .activation = 1000,
      .weight_gradient_input = 370,
      .recompute_input = 110,
      .edge = 17};
}

/// The placements of `ranks` ranks that policies are made for: linear, looped with up to 4 chunks,
/// V.
[[nodiscard]] inline std::vector<placement> placements(int ranks) {
  auto result = std::vector<placement>{placement::linear(ranks), placement::v_shape(ranks)};
  for (int chunks = 2; chunks <= 4; ++chunks) result.push_back(placement::looped(ranks, chunks));
  return result;
}

/// The policies that tests go through: the built-in ones, with searches that are over at once.
/// `greedy_auto`, which takes everything, has tests of its own.
[[nodiscard]] inline std::vector<any_policy> grid_policies() {
  std::vector<any_policy> all;
  for_each_policy([&]<class Policy>(Policy policy) {
    if constexpr (requires { policy.search; }) policy.search.seconds = 0;
    if (Policy::name != greedy_auto::name) all.emplace_back(policy);
  });
  return all;
}

/// Whether the documentation of a policy of the grid says that it schedules a problem.
[[nodiscard]] inline bool is_supported(any_policy const& policy, problem const& problem) {
  auto const name = policy.name();
  if (name == "dualpipe_v")
    return problem.placement().is_v_shape() && problem.microbatches() >= 2 * problem.ranks();
  if (name == "stp")
    return problem.placement().is_v_shape() && problem.microbatches() >= 3 * problem.ranks() - 1;
  if (name == "zb_v" || name == "v_half" || name == "v_min")
    return problem.placement().is_v_shape();
  if (name.ends_with("interleaved") || name == "interleaved_zb")
    return problem.placement().is_looped();
  return problem.placement().is_linear();
}

/// Numbers of microbatches from 1 to 8 `ranks`, under sanitizers to 3 `ranks`: all of them for few
/// ranks, for more those around which rules change, under sanitizers half of those.
[[nodiscard]] inline std::vector<int> microbatch_counts(int ranks) {
  std::vector<int> counts;
  auto const p = ranks;
  auto const most = thinned(8, 3) * p;
  if (p <= thinned(3, 1)) {
    for (int m = 1; m <= most; ++m) counts.push_back(m);
    return counts;
  }
  counts = thinned<std::vector<int>>(
      {1, 2, p - 1, p, p + 1, 2 * p - 2, 2 * p - 1, 2 * p, 3 * p, most},
      {1, p - 1, p + 1, 2 * p, most});
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

/// Calls `visit(policy, problem)` for every policy of the grid, number of ranks from `ranks`,
/// placement and number of microbatches; also where the policy refuses the problem. Searches are
/// left out on more than 8 ranks.
template <class Visit>
void for_each_case(std::vector<int> const& ranks, Visit visit) {
  auto const policies = grid_policies();
  for (int p : ranks)
    for (auto const& placement : placements(p))
      for (int m : microbatch_counts(p)) {
        problem const problem(placement, m, uneven_costs(), 87);
        for (auto const& policy : policies)
          if (p <= 8 || !policy.searches()) visit(policy, problem);
      }
}

/// Calls `visit(policy, problem, schedule)` for those that the policy supports.
template <class Visit>
void for_each_schedule(std::vector<int> const& ranks, Visit visit) {
  for_each_case(ranks, [&](any_policy const& policy, problem const& problem) {
    if (is_supported(policy, problem)) visit(policy, problem, policy(problem));
  });
}

/// Names a case in the messages of failed checks.
[[nodiscard]] inline std::string name_of(any_policy const& policy, problem const& problem) {
  return std::string(policy.name()) + " on " + problem.placement().name() + ", " +
         std::to_string(problem.ranks()) + " ranks, " + std::to_string(problem.stages()) +
         " stages, " + std::to_string(problem.microbatches()) + " microbatches";
}

/// Puts an R in front of each B and BW whose stage and microbatch add up to an even number, unless
/// it has one.
[[nodiscard]] inline schedule with_recompute(schedule const& order) {
  rows<pass> result;
  auto const passes = order.passes().all();
  std::set<pass> const there(passes.begin(), passes.end());
  for (int rank = 0; rank < order.ranks(); ++rank) {
    for (auto const& p : order.passes(rank)) {
      pass const again{pass_kind::recompute, p.stage, p.microbatch};
      if (p.makes_input_gradient() && (p.stage + p.microbatch) % 2 == 0 && there.count(again) == 0)
        result.push(again);
      result.push(p);
    }
    result.end_row();
  }
  return {order.placement(), order.microbatches(), std::move(result)};
}

}  // namespace zbpp::test
