// SPDX-License-Identifier: Apache-2.0
//
// What planner/with_placement.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/planner/detail/cuts.hpp>
#include <zbpp/planner/with_placement.hpp>

#include <cstdint>
#include <limits>
#include <numeric>

namespace zbpp {

ZBPP_INLINE problem with_placement(problem const& problem, placement const& placement) {
  if (placement.ranks() != problem.ranks())
    throw error(errc::bad_argument) + "the placement has " + placement.ranks() +
        " ranks and the problem " + problem.ranks() + "; a model stays on its ranks";
  auto const parts =
      placement.stages() / std::gcd(placement.stages(), problem.stages());  // of each stage
  constexpr std::int64_t most_parts = std::int64_t{1} << 20;
  if (std::int64_t{parts} * problem.stages() > most_parts)
    throw error(errc::bad_argument) + problem.stages() + " stages on a placement of " +
        placement.stages() + " would be divided into " + (std::int64_t{parts} * problem.stages()) +
        " parts; at most " + most_parts + " are. Choose fewer chunks, or a number that divides";
  return *detail::regroup(problem, placement, std::numeric_limits<int>::max());
}

}  // namespace zbpp
