// SPDX-License-Identifier: Apache-2.0
//
// Every planner by its name, for programs whose users choose one: the policies of the registry, and
// the searches that choose a placement or cut layers as well.
#pragma once

#include <zbpp/json/plan.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/search.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::json {

/// Says how far a planner decides.
enum class planner_scope : std::uint8_t {
  order,      ///< a policy
  placement,  ///< `auto_placement`
  layers,     ///< `auto_plan`
};

/// Names a planner.
struct planner {
  std::string_view name;     ///< such as `zb_h1`
  std::string_view title;    ///< such as `ZB-H1`
  std::string_view summary;  ///< in a few words
  planner_scope scope = planner_scope::order;
  bool searches = false;  ///< and so has a budget, can be stopped and reports its progress
};

/// @return every planner: the policies of the registry, `auto_placement` and `auto_plan`
[[nodiscard]] std::vector<planner> planners();

/// Finds a planner by its name or title.
/// @throws error (bad_argument) listing the names there are
[[nodiscard]] planner find_planner(std::string_view name);

/// Plans a problem with a planner, and reports how long that took.
/// @param name    its name or title
/// @param search  the budget of a planner that searches
/// @throws error (bad_argument) when there is no such planner, or when it needs layers;
///         (unsupported_problem) when it refuses the problem. Limits are for `check_limits`.
[[nodiscard]] plan_report plan_problem(
    problem problem, std::string_view name, search_settings const& search = {});

/// Checks that every rank has the memory that a plan needs.
/// @throws error (unsupported_problem) naming the first rank that has not, and the least limit that
///         works for the plan on every rank
void check_limits(plan_report const& plan);

}  // namespace zbpp::json

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/json/impl/planners.ipp>
#endif
