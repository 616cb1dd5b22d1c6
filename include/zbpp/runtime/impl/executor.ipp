// SPDX-License-Identifier: Apache-2.0
//
// The ranks and the grid of an executor.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/runtime/executor.hpp>

#include <numeric>

namespace zbpp {

ZBPP_INLINE one_process::one_process(plan const& planned)
    : ranks_(detail::index(planned.problem().ranks())) {
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

// Calls in groups of one change nothing, so all ranks may share the grid of one.
ZBPP_INLINE rank_grid& detail::grid_of(executor& from, int rank) {
  static rank_grid alone;
  auto* const grid = from.grid_of(rank);
  return grid == nullptr ? alone : *grid;
}

}  // namespace zbpp
