// SPDX-License-Identifier: Apache-2.0
//
// How little memory a plan could take at its cost, and for a little more of it.
#pragma once

#include "planners.hpp"
#include "tables.hpp"
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/save_memory.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace planning {

/// Tells whether the frontier is told of a plan: where orders were searched with all the memory to
/// choose from, and the problem says what passes keep.
[[nodiscard]] inline bool has_frontier(planner const& by, zbpp::json::plan_report const& plan) {
  return (!by.policy || by.name() == zbpp::greedy_auto::name) &&
         plan.problem.memory_limits().empty() && std::ranges::max(plan.peak_memory) > 0 &&
         !interruption::was_raised();
}

/// @return three lines: the memory of the fullest rank at the cost of a plan, at 1 % and at 5 %
///         more
[[nodiscard]] inline std::string frontier_of(
    zbpp::json::plan_report const& plan, searching const& search) {
  std::vector<std::pair<std::string, std::string>> lines;
  zbpp::found_plan found{.problem = plan.problem, .schedule = plan.schedule, .cost = plan.cost};
  for (int const percents : {0, 1, 5}) {
    found = search.watch([&](zbpp::search_settings const& settings) {
      auto part = settings;
      part.seconds *= zbpp::detail::share_of_saving;
      return zbpp::save_memory(std::move(found), plan.cost + plan.cost / 100 * percents, part);
    });
    auto const all = zbpp::peak_memory(zbpp::lower(found.schedule), plan.problem);
    auto const most = std::ranges::max(all, {}, &zbpp::memory_peak::total).total;
    lines.emplace_back(
        "least memory at " +
            (percents == 0 ? std::string("this cost") : "+" + std::to_string(percents) + " %"),
        std::to_string(most) + ", cost " + time_text(found.cost, search.unit));
  }
  return facts_text(lines);
}

}  // namespace planning
