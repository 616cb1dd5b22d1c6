// SPDX-License-Identifier: Apache-2.0
//
// The policies that the program knows, and how it makes a plan with one of them.
#pragma once

#include "numbers.hpp"
#include "searching.hpp"
#include <zbpp/error.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/auto_placement.hpp>
#include <zbpp/planner/auto_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/registry.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace planning {

/// Says that no schedule fits the memory limits, and the least that would.
struct nothing_fits : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Is a schedule and the problem it solves, which may be placed otherwise than the one asked for.
struct solution {
  zbpp::problem problem;
  zbpp::schedule schedule;
};

/// Is whatever decides an order.
struct planner {
  std::string name;
  std::string title;
  std::string summary;
  searching const* how;
  std::function<solution(zbpp::problem const&, searching const&)> solve;
};

/// @return the name of the one that chooses the placement too
inline constexpr std::string_view auto_placement_name = "auto_placement";

/// @return the name of the one that cuts layers into stages, too
inline constexpr std::string_view auto_plan_name = "auto_plan";

/// @return all planners; `how` must outlive them
[[nodiscard]] inline std::vector<planner> all_planners(searching const& how) {
  std::vector<planner> all;
  for (auto const& policy : zbpp::builtin_policies())
    all.push_back(
        {std::string(policy.name()),
         std::string(policy.title()),
         std::string(policy.summary()),
         &how,
         [policy](zbpp::problem const& problem, searching const& budget) -> solution {
           if (!policy.searches()) return {problem, policy(problem)};
           return budget.watch([&](zbpp::search_settings const& search) -> solution {
             return {problem, find_policy(zbpp::builtin_policies(search), policy.name())(problem)};
           });
         }});
  all.push_back(
      {std::string(auto_placement_name),
       "auto-placement",
       "greedy-auto on the placement that suits best",
       &how,
       [](zbpp::problem const& problem, searching const& budget) -> solution {
         return budget.watch([&](zbpp::search_settings const& search) -> solution {
           auto found = zbpp::auto_placement{.search = search}(problem);
           return {std::move(found.problem), std::move(found.schedule)};
         });
       }});
  all.push_back(
      {std::string(auto_plan_name),
       std::string(zbpp::auto_plan::title),
       "layers, placement and order at once; needs layers",
       &how,
       [](zbpp::problem const&, searching const&) -> solution {
         refuse("auto_plan needs layers: give --layers N, or --problem FILE with layers in it");
       }});
  return all;
}

/// @return the planner of a name or title
/// @throws zbpp::error (bad_argument) listing the names there are
[[nodiscard]] inline planner const& find_planner(
    std::vector<planner> const& all, std::string_view name) {
  auto const found = std::find_if(all.begin(), all.end(), [name](planner const& one) {
    return one.name == name || one.title == name;
  });
  if (found != all.end()) return *found;
  std::string text = "no policy is called '" + zbpp::one_line(name, 60) + "'; there are";
  for (auto const& one : all) text += " " + one.name;
  refuse(text);
}

/// @throws nothing_fits when a plan needs more than a rank has
inline void check_limits(zbpp::json::plan_report const& found) {
  auto const& peaks = found.peak_memory;
  for (int rank = 0; rank < found.problem.ranks(); ++rank) {
    auto const peak = peaks[static_cast<std::size_t>(rank)];
    auto const limit = found.problem.memory_limit(rank);
    if (!limit || peak <= *limit) continue;
    throw nothing_fits(
        "rank " + std::to_string(rank) + ": " + found.policy + " needs " + std::to_string(peak) +
        ", its limit is " + std::to_string(*limit) +
        "; the least limit that works for it on every rank is " +
        std::to_string(*std::max_element(peaks.begin(), peaks.end())));
  }
}

/// Tells whether a planner that refused a problem schedules it where there is memory enough.
[[nodiscard]] inline bool lacks_memory(planner const& who, zbpp::problem const& problem) {
  if (problem.memory_limits().empty()) return false;
  auto const unlimited = zbpp::with_memory_limits(problem, {});
  auto budget = *who.how;
  budget.seconds = 0;
  try {
    static_cast<void>(who.solve(unlimited, budget));
    return true;
  } catch (zbpp::error const& refused) {
    if (refused.code() != zbpp::errc::unsupported_problem) throw;
    return false;
  }
}

/// Makes a plan within the memory limits, and everything that is said of it.
/// @throws nothing_fits; zbpp::error when the planner cannot schedule the problem
[[nodiscard]] inline zbpp::json::plan_report make_plan(
    planner const& who, zbpp::problem const& problem) {
  auto const solve = [&] {
    try {
      return who.solve(problem, *who.how);
    } catch (zbpp::error const& refused) {
      if (refused.code() == zbpp::errc::unsupported_problem && lacks_memory(who, problem))
        throw nothing_fits(refused.what());
      throw;
    }
  };
  auto const start = std::chrono::steady_clock::now();
  auto found = solve();
  std::chrono::duration<double> const spent = std::chrono::steady_clock::now() - start;
  auto file = zbpp::json::make_plan_report(
      who.title, std::move(found.schedule), std::move(found.problem), spent.count());
  check_limits(file);
  return file;
}

}  // namespace planning
