// SPDX-License-Identifier: Apache-2.0
//
// Searches placement after placement, and limit after limit.
#pragma once

#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/auto_placement.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/detail/regroup.hpp>
#include <zbpp/planner/detail/search_parts.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/save_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace zbpp {
namespace detail {

[[nodiscard]] ZBPP_INLINE placed_schedule place(problem problem, search_settings const& search) {
  auto found = find_cheapest(problem, search);
  return {std::move(problem), std::move(found.schedule), found.cost, found.bound};
}

/// Makes a schedule take less memory at no more than a cost.
ZBPP_INLINE void save_memory_of(
    placed_schedule& placed, ticks most, search_settings const& search) {
  auto found = zbpp::save_memory(
      placed.problem,
      {.schedule = std::move(placed.schedule), .cost = placed.cost, .bound = placed.bound},
      most,
      search);
  placed.schedule = std::move(found.schedule);
  placed.cost = found.cost;
}

/// Finds the cheapest schedule for each placement that fits the memory, whatever it takes of that.
[[nodiscard]] ZBPP_INLINE std::vector<placed_schedule> cheapest_placed(
    problem const& problem, bool halve_stages, search_settings const& search) {
  auto all = regroupings(problem, halve_stages);
  std::erase_if(all, [](zbpp::problem const& one) { return !fits_memory(one); });
  std::vector<placed_schedule> found;
  for (std::size_t i = 0; i < all.size(); ++i)
    found.push_back(place(std::move(all[i]), part_of_search(search, i, all.size())));
  return found;
}

/// Sweeps one placement. What fits a limit fits every higher one, and what no schedule can do
/// within a limit none can do within a lower one.
/// @param limits  ascending, each once
[[nodiscard]] ZBPP_INLINE std::vector<sweep_point> sweep_placement(
    problem const& problem, std::span<bytes const> limits, search_settings const& search) {
  std::vector<sweep_point> points;
  for (auto const limit : limits) {
    auto const limited = with_memory_limit(problem, limit);
    if (!fits_memory(limited)) continue;
    auto const found = place(limited, search);
    sweep_point point{
        .placement = sweep_name(problem.placement()),
        .memory_limit = limit,
        .cost = found.cost,
        .lower_bound = found.bound.cost,
        .bubble_rate = bubble_rate(simulate(found.schedule, limited))};
    if (!points.empty() && points.back().cost <= found.cost) {
      point.cost = points.back().cost;
      point.bubble_rate = points.back().bubble_rate;
    }
    points.push_back(std::move(point));
  }
  ticks bound = 0;
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    bound = std::max(bound, point->lower_bound);
    point->lower_bound = bound;
    point->optimal = point->cost <= bound;
  }
  return points;
}

}  // namespace detail

ZBPP_INLINE std::vector<placed_schedule> auto_placement::candidates(problem const& problem) const {
  static_cast<void>(detail::cost_with_share(0, most_memory_for));
  auto found = detail::cheapest_placed(problem, halve_stages, search);
  for (auto& one : found)
    detail::save_memory_of(one, detail::cost_with_share(one.cost, most_memory_for), search);
  return found;
}

ZBPP_INLINE placed_schedule auto_placement::operator()(problem const& problem) const {
  static_cast<void>(detail::cost_with_share(0, most_memory_for));
  auto found = detail::cheapest_placed(problem, halve_stages, search);
  if (!found.empty()) {
    auto const least = std::ranges::min_element(found, {}, &placed_schedule::cost)->cost;
    auto const most = detail::cost_with_share(least, most_memory_for);
    std::erase_if(found, [&](placed_schedule const& one) { return one.cost > most; });
    std::vector<std::pair<memory_use, ticks>> uses;
    for (auto& one : found) {
      detail::save_memory_of(one, most, search);
      uses.emplace_back(
          memory_use_of(detail::memory_of(one.schedule, one.problem), one.problem), one.cost);
    }
    // The first of equal ones has the fewest stages.
    return std::move(found[detail::index(std::ranges::min_element(uses) - uses.begin())]);
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

ZBPP_INLINE std::vector<sweep_point> sweep_memory(
    problem const& problem, std::span<bytes const> limits, auto_placement const& settings) {
  auto const ascending = detail::ascending_limits(limits);
  auto const all = detail::regroupings(problem, settings.halve_stages);
  std::vector<sweep_point> points;
  for (auto const& one : all)
    for (auto& point : detail::sweep_placement(one, ascending, settings.search))
      points.push_back(std::move(point));
  return points;
}

ZBPP_INLINE std::vector<sweep_point> sweep_memory(
    problem const& problem, std::span<bytes const> limits, greedy_auto const& settings) {
  return detail::sweep_placement(problem, detail::ascending_limits(limits), settings.search);
}

}  // namespace zbpp
