// SPDX-License-Identifier: Apache-2.0
//
// The search for the cheapest plan of layers over placements, cuts, stages that recompute, and
// orders at once.
#pragma once

#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/search.hpp>

#include <vector>

namespace zbpp::detail {

/// @return how many pieces the stages of a plan are made of: the layers of the model, or its
/// stages,
///         or the halves of these where ranks have fewer than two
[[nodiscard]] int pieces_of(problem const& model);

/// Lists the placements that a model has pieces enough for, the fewest stages first, each once.
[[nodiscard]] std::vector<placement> placements_for(problem const& model, int most_chunks);

/// Searches for the cheapest plan of a model of layers on some placements.
///
/// What it does one after another depends on the model and the seed, never on the budget, which
/// only says where it ends. So a larger budget never gives a worse plan, until memory is saved.
/// @param placements  the fewest stages first
/// @param most_memory_for  share of the cost to spend for memory
/// @param begins_with_own_cut  whether the cut that the model has is tried first
/// @return the plan; its lower bound is about all these placements, however they are cut
/// @throws error (unsupported_problem) when nothing that was tried fits the memory
[[nodiscard]] found_plan search_placements(
    problem const& model,
    std::vector<placement> const& placements,
    search_budget const& budget,
    double most_memory_for,
    bool begins_with_own_cut);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/placement_search.ipp>
#endif
