// SPDX-License-Identifier: Apache-2.0
//
// How much R the memory of a rank forces upon each microbatch, whatever else the rank holds.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>

namespace zbpp::detail {

/// Finds the least time of R that a microbatch takes on a rank. While B of a stage runs, the
/// rank holds what the stage and those before it keep of the same microbatch. Where that is too
/// much, one of those before must have kept less, and has its R still to run.
/// @return 0 also where nothing fits, and where there are too many stages to look at
/// @complexity O(stages of the rank * 2^stages of the rank), up to eight stages
[[nodiscard]] inline ticks forced_recompute(problem const& problem, int rank, int microbatch) {
  auto const stages = problem.placement().stages_of(rank);
  auto const limit = problem.memory_limit(rank);
  constexpr std::size_t most_chunks = 8;
  if (!limit || stages.size() < 2 || stages.size() > most_chunks) return 0;
  bytes room = *limit;
  for (int s : stages) room -= problem.fixed_memory(s);
  constexpr auto none = std::numeric_limits<ticks>::max();
  auto least = none;
  for (std::size_t lean = 0; lean < std::size_t{1} << (stages.size() - 1); ++lean) {
    bytes before = 0;  // of the stages so far
    ticks time = 0;
    bool fits = true;
    for (std::size_t i = 0; i < stages.size() && fits; ++i) {
      auto const c = problem.costs(stages[i], microbatch);
      bool const is_lean = (lean >> i & 1) != 0;
      fits = before + c.activation + c.workspace <= room && (!is_lean || c.recompute);
      before += is_lean ? c.recompute_input : c.activation;
      time += is_lean ? c.recompute.value_or(0) : 0;
    }
    if (fits) least = std::min(least, time);
  }
  return least == none ? 0 : least;
}

}  // namespace zbpp::detail
