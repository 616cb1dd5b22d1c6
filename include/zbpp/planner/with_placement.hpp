// SPDX-License-Identifier: Apache-2.0
//
// The same model on another placement of its ranks, so that plans of different placements can be
// compared.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/detail/regroup.hpp>

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>

namespace zbpp {

/// Puts a model on another placement with as many ranks. Neighbouring stages are merged; where they
/// do not come out even, each is divided into equal parts first, whose times and sizes add up to
/// it: what does not divide evenly goes to the first parts. What is sent keeps its size, also
/// between parts. Tied weights stay at the ends of the model; transfers and limits stay.
/// @throws error (bad_argument) when it has another number of ranks, or too many stages
[[nodiscard]] inline problem with_placement(problem const& problem, placement const& placement) {
  if (placement.ranks() != problem.ranks())
    throw error(
        errc::bad_argument,
        "the placement has " + std::to_string(placement.ranks()) + " ranks and the problem " +
            std::to_string(problem.ranks()) + "; a model stays on its ranks");
  auto const parts =
      placement.stages() / std::gcd(placement.stages(), problem.stages());  // of each stage
  constexpr std::int64_t most_parts = std::int64_t{1} << 20;
  if (std::int64_t{parts} * problem.stages() > most_parts)
    throw error(
        errc::bad_argument,
        std::to_string(problem.stages()) + " stages on a placement of " +
            std::to_string(placement.stages()) + " would be divided into " +
            std::to_string(std::int64_t{parts} * problem.stages()) + " parts; at most " +
            std::to_string(most_parts) + " are. Choose fewer chunks, or a number that divides");
  return *detail::regroup(problem, placement, std::numeric_limits<int>::max());
}

/// @return the name of a placement, with its number of chunks where that is not in the name, as in
///         `looped 2`
[[nodiscard]] inline std::string placement_text(placement const& placement) {
  return detail::sweep_name(placement);
}

}  // namespace zbpp
