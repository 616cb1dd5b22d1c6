// SPDX-License-Identifier: Apache-2.0
//
// The same model on another placement of its ranks, to compare plans of different placements.
#pragma once

#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>

namespace zbpp {

/// Puts a model on another placement with as many ranks. Neighbouring stages are merged; where they
/// do not come out even, each is divided into equal parts first, whose times and sizes add up to
/// it: what does not divide evenly goes to the first parts. What is sent keeps its size, also
/// between parts. Tied weights stay at the ends of the model; transfers and limits stay.
/// @throws error (bad_argument) when it has another number of ranks, or too many stages
[[nodiscard]] problem with_placement(problem const& problem, placement const& placement);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/with_placement.ipp>
#endif
