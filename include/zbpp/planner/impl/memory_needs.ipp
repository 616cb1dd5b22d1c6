// SPDX-License-Identifier: Apache-2.0
//
// The least memory, found by running a few microbatches one by one.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/memory_needs.hpp>

#include <vector>

namespace zbpp {

ZBPP_INLINE std::vector<bytes> least_memory(problem const& problem) {
  auto const few = detail::with_few_microbatches(problem);
  return detail::memory_of(detail::one_by_one(few), few);
}

}  // namespace zbpp
