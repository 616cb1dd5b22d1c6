// SPDX-License-Identifier: Apache-2.0
//
// The least memory, found by running a few microbatches one by one.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/memory_needs.hpp>

#include <algorithm>

namespace zbpp {

ZBPP_INLINE std::vector<bytes> least_memory(problem const& problem) {
  // A few microbatches show all that many would: the order only repeats itself.
  constexpr int enough = 4;
  zbpp::problem const few(
      problem.placement(),
      std::min(problem.microbatches(), enough),
      {problem.all_costs().begin(), problem.all_costs().end()});
  return detail::memory_of(detail::one_by_one(few), few);
}

}  // namespace zbpp
