// SPDX-License-Identifier: Apache-2.0
//
// How much memory each rank needs at least, and how far a schedule is from its limits.
#pragma once

#include <zbpp/analysis/detail/activation_count.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/recompute.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {
namespace detail {

/// Runs one microbatch after another, each from its first F to its last W: no order holds less.
[[nodiscard]] inline schedule one_by_one(problem const& problem) {
  std::vector<std::vector<pass>> passes(index(problem.ranks()));
  auto const add = [&](pass_kind kind, int s, int m) {
    passes[index(problem.placement().rank_of(s))].push_back({kind, s, m});
  };
  for (int m = 0; m < problem.microbatches(); ++m) {
    for (int s = 0; s < problem.stages(); ++s) add(pass_kind::forward, s, m);
    for (int s = problem.stages() - 1; s >= 0; --s) {
      if (problem.costs(s).recompute) add(pass_kind::recompute, s, m);
      add(pass_kind::backward_input, s, m);
      add(pass_kind::backward_weight, s, m);
    }
  }
  return {problem.placement(), problem.microbatches(), passes};
}

/// @return the most bytes that each rank of a schedule holds, edges included
[[nodiscard]] inline std::vector<bytes> memory_of(schedule const& order, problem const& problem) {
  auto const sizes = problem.all_costs();
  bool const has_edges =
      std::any_of(sizes.begin(), sizes.end(), [](stage_costs const& c) { return c.edge > 0; });
  std::vector<bytes> totals;
  if (has_edges) {
    for (auto const& peak : peak_memory(lower(order), problem)) totals.push_back(peak.total);
    return totals;
  }
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    bytes fixed = 0;
    for (int s : problem.placement().stages_of(rank)) fixed += problem.costs(s).static_memory;
    activation_count count(problem, order.passes(rank));
    bytes most = fixed;
    for (auto const& p : order.passes(rank)) {
      most = std::max(most, fixed + count.begin(p) + problem.costs(p.stage).workspace);
      count.end(p);
    }
    totals.push_back(most);
  }
  return totals;
}

/// @param used  bytes of each rank
/// @return whether no rank uses more than its limit
[[nodiscard]] inline bool keeps_limits(std::vector<bytes> const& used, problem const& problem) {
  for (int rank = 0; rank < problem.ranks(); ++rank)
    if (auto const limit = problem.memory_limit(rank); limit && used[index(rank)] > *limit)
      return false;
  return true;
}

/// @return whether a schedule stays within the limits of every rank
[[nodiscard]] inline bool is_within_limits(schedule const& order, problem const& problem) {
  return keeps_limits(memory_of(order, problem), problem);
}

/// @return how many microbatches the tightest rank has room for, all its chunks counted; at least 1
[[nodiscard]] inline int tightest_room(problem const& problem) {
  bytes room = problem.microbatches();
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    bytes kept = 0;
    for (int s : problem.placement().stages_of(rank)) kept += problem.costs(s).activation;
    auto const limit = problem.memory_limit(rank);
    if (limit && kept > 0) room = std::clamp<bytes>(*limit / kept, 1, room);
  }
  return static_cast<int>(room);
}

}  // namespace detail

/// Says how many bytes each rank needs to run a problem at all, one microbatch after another, with
/// R where its stages offer it. With edges of size 0 no schedule needs less.
/// @complexity O(stages)
[[nodiscard]] inline std::vector<bytes> least_memory(problem const& problem) {
  // A few microbatches show all that many would: the order only repeats itself.
  constexpr int enough = 4;
  zbpp::problem const few(
      problem.placement(),
      std::min(problem.microbatches(), enough),
      {problem.all_costs().begin(), problem.all_costs().end()});
  return detail::memory_of(detail::one_by_one(few), few);
}

namespace detail {

/// Refuses a problem whose limits no schedule can keep.
/// @throws error (unsupported_problem) naming the rank, what it needs and the least that works
inline void require_memory(problem const& problem) {
  auto const needed = least_memory(problem);
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    auto const limit = problem.memory_limit(rank);
    if (!limit || *limit >= needed[index(rank)]) continue;
    auto const all = *std::max_element(needed.begin(), needed.end());
    throw error(
        errc::unsupported_problem,
        "no schedule fits: the rank needs " + std::to_string(needed[index(rank)]) +
            " bytes for one microbatch at a time, its limit is " + std::to_string(*limit) +
            "; the least limit that works for every rank is " + std::to_string(all),
        {.rank = rank});
  }
}

}  // namespace detail
}  // namespace zbpp
