// SPDX-License-Identifier: Apache-2.0
//
// Searches with a budget for activations alone: static memory, workspace and edges come on top of
// it, up to the memory limits of the problem.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/search.hpp>

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

/// Searches for the cheapest schedule in which no rank holds more activations than its budget, nor
/// more memory than its limit.
/// @param budget  bytes of each rank, at least those of one microbatch
/// @throws error (unsupported_problem) when no schedule fits the limits of the problem
[[nodiscard]] inline schedule find_within(
    problem const& problem, std::vector<bytes> const& budget, search_settings const& search) {
  require_memory(problem);
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
  auto const least = least_memory(with_free_edges(problem, {}));
  constexpr int most_rounds = 8;
  for (int round = 0; round < most_rounds; ++round) {
    auto order = greedy_auto{.search = search}(with_free_edges(problem, limits));
    // What edges take beyond a limit of the problem is not there for activations.
    bool fits = true;
    auto const used = memory_of(order, problem);
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      auto const limit = problem.memory_limit(rank);
      if (!limit || used[index(rank)] <= *limit) continue;
      fits = false;
      auto& left = limits[index(rank)];
      left = std::max(left - (used[index(rank)] - *limit), least[index(rank)]);
    }
    if (fits) return order;
  }
  return one_by_one(problem);
}

}  // namespace zbpp::detail
