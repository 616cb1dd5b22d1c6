// SPDX-License-Identifier: Apache-2.0
//
// Searches with a budget for activations alone: static memory, workspace and edges come on top of
// it, up to the memory limits of the problem.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/search.hpp>
#include <zbpp/policy/interleaved.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Makes the messages of a problem take no memory and as much time as before. Where the edges that
/// two ranks exchange one way differ in size, all of them take as long as the largest.
[[nodiscard]] inline problem with_free_edges(problem const& problem, std::vector<bytes> limits) {
  std::vector<stage_costs> costs(problem.all_costs().begin(), problem.all_costs().end());
  for (auto& c : costs) c.edge = 0;
  auto transfer = problem.transfer();
  if (!transfer.time_per_byte().empty()) {
    auto const p = problem.ranks();
    std::vector<ticks> latency(index(p) * index(p), 0);
    auto const raise = [&](int from, int to) {
      auto const pair =
          std::int64_t{problem.placement().rank_of(from)} * p + problem.placement().rank_of(to);
      auto& most = latency[index(pair)];
      most = std::max(most, problem.transfer_time(from, to));
    };
    for (int s = 1; s < problem.stages(); ++s) {
      raise(s - 1, s);
      raise(s, s - 1);
    }
    transfer = {p, std::move(latency)};
  }
  return {
      problem.placement(),
      problem.microbatches(),
      std::move(costs),
      std::move(transfer),
      std::move(limits)};
}

/// @return bytes of the activations of so many microbatches, for each rank
[[nodiscard]] inline std::vector<bytes> budget_of(problem const& problem, int microbatches) {
  std::vector<bytes> budget;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    bytes kept = 0;
    for (int s : problem.placement().stages_of(rank)) kept += problem.costs(s).activation;
    budget.push_back(kept * std::min(microbatches, problem.microbatches()));
  }
  return budget;
}
/// @return the budget of V-Half
[[nodiscard]] inline std::vector<bytes> v_half_budget(problem const& problem) {
  return budget_of(problem, (problem.ranks() + 2) / 2);
}
/// @return the budget of V-Min
[[nodiscard]] inline std::vector<bytes> v_min_budget(problem const& problem) {
  return budget_of(problem, (problem.ranks() + 4) / 3);
}
/// @return the problem with as many microbatches as 1F1B-I can run, and no limits
[[nodiscard]] inline problem in_whole_groups(problem const& problem) {
  auto const p = problem.ranks();
  return {
      problem.placement(),
      (problem.microbatches() + p - 1) / p * p,
      {problem.all_costs().begin(), problem.all_costs().end()}};
}
/// @return the budget of interleaved zero bubble, what 1F1B-I takes
[[nodiscard]] inline std::vector<bytes> interleaved_budget(problem const& problem) {
  auto const whole_groups = in_whole_groups(problem);
  return peak_activations(interleaved{}(whole_groups), whole_groups);
}
/// Makes the budget of a policy for a problem.
using budget_call = std::vector<bytes> (*)(problem const&);
/// @return how all policies that search on a placement make their budgets
[[nodiscard]] inline std::vector<budget_call> activation_budgets(placement const& placement) {
  if (placement.is_v_shape()) return {v_half_budget, v_min_budget};
  if (placement.is_looped()) return {interleaved_budget};
  return {};
}

/// @return the limits of a problem, lowered to what a budget for activations comes to with static
///         memory and workspace
[[nodiscard]] inline std::vector<bytes> limits_within(
    problem const& problem, std::vector<bytes> const& budget) {
  std::vector<bytes> limits;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    bytes fixed = 0;
    bytes workspace = 0;
    for (int s : problem.placement().stages_of(rank)) {
      fixed += problem.costs(s).static_memory;
      workspace = std::max(workspace, problem.costs(s).workspace);
    }
    auto const sum = fixed + workspace + budget[index(rank)];
    limits.push_back(std::min(sum, problem.memory_limit(rank).value_or(sum)));
  }
  return limits;
}

/// Searches for the cheapest schedule in which no rank holds more activations than its budget, nor
/// more memory than its limit.
/// @param budget  bytes of each rank, at least those of one microbatch
/// @param bound   of the cost within the budget, where one is known
/// @return the schedule and how many were tried; cost and bound are those of the smaller memory
/// @throws error (unsupported_problem) when no schedule fits the limits of the problem
[[nodiscard]] inline found_schedule find_within(
    problem const& problem,
    std::vector<bytes> const& budget,
    search_settings const& search,
    cost_bound const& bound = {}) {
  require_memory(problem);
  auto limits = limits_within(problem, budget);
  auto const least = least_memory(with_free_edges(problem, {}));
  constexpr int most_rounds = 8;
  std::int64_t tries = 0;
  for (int round = 0; round < most_rounds; ++round) {
    auto found = search_once(with_free_edges(problem, limits), search, bound);
    found.tries = tries += found.tries;
    // What edges take beyond a limit of the problem is not there for activations.
    bool fits = true;
    auto const used = memory_of(found.schedule, problem);
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      auto const limit = problem.memory_limit(rank);
      if (!limit || used[index(rank)] <= *limit) continue;
      fits = false;
      auto& left = limits[index(rank)];
      left = std::max(left - (used[index(rank)] - *limit), least[index(rank)]);
    }
    if (fits) return found;
  }
  auto order = one_by_one(problem);
  auto const its = cost(simulate(order, problem));
  return {std::move(order), its, lower_bound(problem), tries};
}

}  // namespace zbpp::detail
