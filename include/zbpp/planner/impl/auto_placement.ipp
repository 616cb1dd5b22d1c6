// SPDX-License-Identifier: Apache-2.0
//
// Searches placement after placement, and limit after limit.
#pragma once

#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/auto_placement.hpp>
#include <zbpp/planner/detail/cuts.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/detail/search_parts.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/save_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace zbpp {
namespace detail {

/// @throws error (bad_argument) unless the budget is a number of seconds, the share from 0 to 1
ZBPP_INLINE void check_settings(search_settings const& search, double most_memory_for) {
  check_budget(search);
  static_cast<void>(cost_with_share(0, most_memory_for));
}

/// Calls `find` for each placement that fits the memory, with an equal share of the budget.
[[nodiscard]] ZBPP_INLINE std::vector<found_plan> find_placed(
    problem const& problem,
    bool halve_stages,
    search_settings const& search,
    std::function<found_plan(zbpp::problem const&, search_settings const&)> const& find) {
  auto all = regroupings(problem, halve_stages);
  auto const each = share_of_each(search, all.size());
  std::erase_if(all, [](zbpp::problem const& one) { return !fits_memory(one); });
  std::vector<found_plan> found;
  for (std::size_t i = 0; i < all.size(); ++i)
    found.push_back(find(all[i], part_of_search(each, i, all.size())));
  return found;
}

/// Sweeps one placement. What fits a limit fits every higher one, and what no schedule can do
/// within a limit none can do within a lower one.
/// @param limits  ascending, each once
[[nodiscard]] ZBPP_INLINE std::vector<found_plan> sweep_placement(
    problem const& problem, std::span<bytes const> limits, greedy_auto const& planner) {
  check_settings(planner.search, planner.most_memory_for);
  std::vector<found_plan> points;
  for (auto const limit : limits) {
    auto const limited = with_memory_limit(problem, limit);
    if (!fits_memory(limited)) continue;
    auto found = planner.find(limited);
    if (!points.empty() && points.back().cost <= found.cost) {
      found.cost = points.back().cost;
      found.schedule = points.back().schedule;
    }
    points.push_back(std::move(found));
  }
  carry_lower_bounds(points);
  return points;
}

}  // namespace detail

ZBPP_INLINE std::vector<found_plan> auto_placement::candidates(problem const& problem) const {
  detail::check_settings(search, most_memory_for);
  return detail::find_placed(
      problem,
      halve_stages,
      search,
      [this](zbpp::problem const& placed, search_settings const& part) {
        return greedy_auto{part, most_memory_for}.find(placed);
      });
}

ZBPP_INLINE found_plan auto_placement::operator()(problem const& problem) const {
  detail::check_settings(search, most_memory_for);
  // Whatever they take of the memory; that is saved at the end.
  auto found = detail::find_placed(
      problem,
      halve_stages,
      detail::share_of(search, 1 - detail::share_of_saving),
      detail::find_cheapest);
  if (!found.empty()) {
    double work = 0;  // over all placements
    for (auto const& one : found) work += one.work;
    auto const least = std::ranges::min_element(found, {}, &found_plan::cost)->cost;
    auto const most = detail::cost_with_share(least, most_memory_for);
    std::erase_if(found, [&](found_plan const& one) { return one.cost > most; });
    auto const part =
        detail::share_of_each(detail::share_of(search, detail::share_of_saving), found.size());
    std::vector<std::pair<memory_use, ticks>> uses;
    for (auto& one : found) {
      work -= one.work;
      one = save_memory(std::move(one), most, part);
      work += one.work;
      uses.emplace_back(
          memory_use_of(detail::memory_of(one.schedule, one.problem), one.problem), one.cost);
    }
    // The first of equal ones has the fewest stages.
    auto& best = found[detail::index(std::ranges::min_element(uses) - uses.begin())];
    best.work = work;
    return std::move(best);
  }
  auto const all = detail::regroupings(problem, halve_stages);
  auto const need = [](zbpp::problem const& one) {
    auto const needed = least_memory(one);
    return *std::max_element(needed.begin(), needed.end());
  };
  detail::require_memory(*std::min_element(
      all.begin(), all.end(), [&](zbpp::problem const& a, zbpp::problem const& b) {
        return need(a) < need(b);
      }));
  throw error(errc::unsupported_problem, "no placement fits the memory limits");
}

ZBPP_INLINE std::vector<found_plan> sweep_memory(
    problem const& problem, std::span<bytes const> limits, auto_placement const& settings) {
  auto const ascending = detail::ascending_limits(limits);
  auto const all = detail::regroupings(problem, settings.halve_stages);
  greedy_auto const planner{
      detail::share_of_each(settings.search, all.size()), settings.most_memory_for};
  std::vector<found_plan> points;
  for (auto const& one : all)
    for (auto& point : detail::sweep_placement(one, ascending, planner))
      points.push_back(std::move(point));
  return points;
}

ZBPP_INLINE std::vector<found_plan> sweep_memory(
    problem const& problem, std::span<bytes const> limits, greedy_auto const& settings) {
  return detail::sweep_placement(problem, detail::ascending_limits(limits), settings);
}

}  // namespace zbpp
