// SPDX-License-Identifier: Apache-2.0
//
// How much memory each rank needs to run a problem at all.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>

#include <vector>

namespace zbpp {

/// Says how many bytes each rank needs to run a problem at all, one microbatch after another, with
/// R where its stages offer it and BW where B adds something for W. With edges of size 0 no
/// schedule needs less.
/// @return the bytes of each rank, static memory, workspace and edges included
/// @complexity O(stages)
[[nodiscard]] std::vector<bytes> least_memory(problem const& problem);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/memory_needs.ipp>
#endif
