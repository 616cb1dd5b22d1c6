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

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/search_once.ipp>
#endif
