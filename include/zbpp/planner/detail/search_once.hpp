// SPDX-License-Identifier: Apache-2.0
//
// One search of a problem, within its own limits.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/search.hpp>

namespace zbpp::detail {

/// Searches for the cheapest schedule of a problem.
/// @param bound  of its cost, where a greater one may be known than `lower_bound` gives
/// @throws error as `greedy_auto::find`
[[nodiscard]] found_schedule search_once(
    problem const& problem, search_settings const& search, cost_bound const& bound = {});

/// Searches for a schedule that costs no more than `target`, and ends with the first.
/// @param problem  one for which there is memory
/// @param work     grows by what the search takes, in passes
/// @return the cheapest schedule found; its bound says nothing
[[nodiscard]] found_schedule search_for(
    problem const& problem, search_settings const& search, ticks target, double& work);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/search_once.ipp>
#endif
