// SPDX-License-Identifier: Apache-2.0
//
// How far problems and schedules are from the memory limits.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/memory_needs.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

namespace zbpp::detail {

/// @param used  bytes of each rank
/// @return whether no rank uses more than its limit
[[nodiscard]] inline bool keeps_limits(std::vector<bytes> const& used, problem const& problem) {
  for (int rank = 0; rank < problem.ranks(); ++rank)
    if (auto const limit = problem.memory_limit(rank); limit && used[index(rank)] > *limit)
      return false;
  return true;
}

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

/// @return whether every rank has the memory for one microbatch at a time
[[nodiscard]] inline bool fits_memory(problem const& problem) {
  return keeps_limits(least_memory(problem), problem);
}

/// Refuses the order of a policy that needs more than a limit.
/// @param used  bytes of each rank
/// @throws error (unsupported_problem) naming the first rank that has too little, and the least
///         limit that works for the order on every rank
inline void require_limits(
    std::string_view policy, std::vector<bytes> const& used, problem const& problem) {
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    auto const needed = used[index(rank)];
    auto const limit = problem.memory_limit(rank);
    if (!limit || needed <= *limit) continue;
    throw error(errc::unsupported_problem, {.rank = rank}) + policy + " needs " + needed +
        ", its limit is " + *limit + "; the least limit that works for it on every rank is " +
        *std::max_element(used.begin(), used.end());
  }
}

/// Refuses a problem whose limits no schedule can keep.
/// @throws error (unsupported_problem) naming the rank, what it needs and the least that works
inline void require_memory(problem const& problem) {
  auto const needed = least_memory(problem);
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    auto const limit = problem.memory_limit(rank);
    if (!limit || *limit >= needed[index(rank)]) continue;
    auto const all = *std::max_element(needed.begin(), needed.end());
    throw error(errc::unsupported_problem, {.rank = rank}) + "no schedule fits: the rank needs " +
        needed[index(rank)] + " bytes for one microbatch at a time, its limit is " + *limit +
        "; the least limit that works for every rank is " + all;
  }
}

}  // namespace zbpp::detail
