// SPDX-License-Identifier: Apache-2.0
//
// How the program makes a plan with a planner that a user names, and when memory is what it lacks.
#pragma once

#include "numbers.hpp"
#include "searching.hpp"
#include <zbpp/error.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/auto_placement.hpp>

#include <stdexcept>

namespace planning {

/// Says that no schedule fits the memory limits, and the least that would.
struct nothing_fits : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// @throws nothing_fits when a plan needs more than a rank has
inline void require_fit(zbpp::json::plan_report const& plan) {
  try {
    zbpp::json::check_limits(plan);
  } catch (zbpp::error const& refused) {
    throw nothing_fits(refused.what());
  }
}

/// Plans a problem, without regard to its memory limits where the planner has none.
/// @throws zbpp::error when the planner cannot schedule it
[[nodiscard]] inline zbpp::json::plan_report solve(
    zbpp::json::planner const& chosen, zbpp::problem const& problem, searching const& search) {
  if (chosen.scope == zbpp::json::planner_scope::layers)
    refuse("auto_plan needs layers: give --layers N, or --problem FILE with layers in it");
  if (!chosen.searches) return zbpp::json::plan_problem(problem, chosen.name);
  auto const usual = chosen.scope == zbpp::json::planner_scope::placement
                         ? zbpp::auto_placement{}.search
                         : zbpp::search_settings{};
  return search.watch(
      [&](zbpp::search_settings const& settings) {
        return zbpp::json::plan_problem(problem, chosen.name, settings);
      },
      usual.seconds);
}

/// Tells whether a planner that refused a problem schedules it where there is memory enough.
[[nodiscard]] inline bool lacks_memory(
    zbpp::json::planner const& chosen, zbpp::problem const& problem, searching search) {
  if (problem.memory_limits().empty()) return false;
  search.seconds = 0;
  try {
    static_cast<void>(solve(chosen, zbpp::with_memory_limits(problem, {}), search));
    return true;
  } catch (zbpp::error const& refused) {
    if (refused.code() != zbpp::errc::unsupported_problem) throw;
    return false;
  }
}

/// Makes a plan within the memory limits, and everything that is said of it.
/// @throws nothing_fits; zbpp::error when the planner cannot schedule the problem
[[nodiscard]] inline zbpp::json::plan_report make_plan(
    zbpp::json::planner const& chosen, zbpp::problem const& problem, searching const& search) {
  auto plan = [&] {
    try {
      return solve(chosen, problem, search);
    } catch (zbpp::error const& refused) {
      if (refused.code() == zbpp::errc::unsupported_problem &&
          lacks_memory(chosen, problem, search))
        throw nothing_fits(refused.what());
      throw;
    }
  }();
  require_fit(plan);
  return plan;
}

}  // namespace planning
