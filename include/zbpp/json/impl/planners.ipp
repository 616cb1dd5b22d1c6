// SPDX-License-Identifier: Apache-2.0
//
// What json/planners.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/planners.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/planner/auto_placement.hpp>
#include <zbpp/planner/auto_plan.hpp>
#include <zbpp/planner/named_policy.hpp>
#include <zbpp/planner/registry.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::json {

ZBPP_INLINE std::vector<planner> planners() {
  std::vector<planner> all;
  for (auto const& policy : builtin_policies())
    all.push_back(
        {policy.name(), policy.title(), policy.summary(), planner_scope::order, policy.searches()});
  all.push_back(
      {"auto_placement",
       "auto-placement",
       "greedy-auto on the placement that suits best",
       planner_scope::placement,
       true});
  all.push_back(
      {"auto_plan",
       auto_plan::title,
       "layers, placement and order at once; needs layers",
       planner_scope::layers,
       true});
  return all;
}

ZBPP_INLINE planner find_planner(std::string_view name) {
  return zbpp::detail::find_named(planners(), name, one_line(name, 60));
}

ZBPP_INLINE plan_report
plan_problem(problem problem, std::string_view name, search_settings const& search) {
  auto const chosen = find_planner(name);
  auto const start = std::chrono::steady_clock::now();
  auto const report = [&](schedule order, zbpp::problem solved) {
    std::chrono::duration<double> const spent = std::chrono::steady_clock::now() - start;
    return make_plan_report(
        std::string(chosen.title), std::move(order), std::move(solved), spent.count());
  };
  switch (chosen.scope) {
    case planner_scope::order: {
      auto order = named_policy(chosen.name, search)(problem);
      return report(std::move(order), std::move(problem));
    }
    case planner_scope::placement: {
      auto found = auto_placement{.search = search}(problem);
      return report(std::move(found.schedule), std::move(found.problem));
    }
    case planner_scope::layers: break;
  }
  throw error(errc::bad_argument) + chosen.name +
      " needs layers; state the model as layers, not as stages";
}

ZBPP_INLINE void check_limits(plan_report const& plan) {
  auto const& peaks = plan.peak_memory;
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) {
    auto const peak = peaks[zbpp::detail::index(rank)];
    auto const limit = plan.problem.memory_limit(rank);
    if (!limit || peak <= *limit) continue;
    throw error(errc::unsupported_problem, {.rank = rank}) + plan.policy + " needs " + peak +
        ", its limit is " + *limit + "; the least limit that works for it on every rank is " +
        *std::max_element(peaks.begin(), peaks.end());
  }
}

}  // namespace zbpp::json
