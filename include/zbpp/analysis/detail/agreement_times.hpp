// SPDX-License-Identifier: Apache-2.0
//
// What agreeing on an optimizer step takes a rank, where it is planned: looking at gradients, and
// telling its neighbours of them.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>

namespace zbpp::detail {

/// Holds the times of one rank.
struct agreement_times {
  ticks norm = 0;     ///< to look at its gradients
  ticks states = 0;   ///< until what it knows of them is at the next rank
  ticks verdict = 0;  ///< until what it knows of all is at the rank before
};

[[nodiscard]] inline agreement_times agreement_times_of(problem const& problem, int rank) {
  constexpr bytes size = 64;  // an entry for each of a few layers
  auto const to = [&](int other) { return problem.transfer()(rank, other, size); };
  agreement_times times;
  for (int const s : problem.placement().stages_of(rank)) times.norm += problem.costs(s).norm;
  if (rank > 0) times.verdict = to(rank - 1);
  // The last rank knows the verdict instead.
  times.states = rank + 1 < problem.ranks() ? to(rank + 1) : times.verdict;
  return times;
}

}  // namespace zbpp::detail
