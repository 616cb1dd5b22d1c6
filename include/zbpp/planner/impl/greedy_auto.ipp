// SPDX-License-Identifier: Apache-2.0
//
// The searches of greedy_auto: of all the memory, and of less where that could hold more.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/activation_budget.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/detail/search_parts.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/save_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace zbpp {

ZBPP_INLINE found_schedule
detail::find_cheapest(problem const& problem, search_settings const& search) {
  auto const budgets = detail::activation_budgets(problem.placement());
  auto const searches = 1 + budgets.size();
  auto found = detail::search_once(problem, detail::part_of_search(search, 0, searches));
  auto const raise = [&] {
    if (!search.stop.stop_requested())
      found.bound = raise_bound(found.bound, found.cost, problem, detail::effort_behind(search));
  };
  raise();
  if (found.is_optimal()) return found;
  std::size_t done = 0;
  for (auto const budget_for : budgets) {
    ++done;
    auto const budget = budget_for(problem);
    auto const limits = detail::limits_within(problem, budget);
    if (std::ranges::equal(limits, problem.memory_limits())) continue;
    auto const smaller = detail::with_free_edges(problem, limits);
    if (search.stop.stop_requested() || !detail::fits_memory(smaller)) continue;
    auto const bound =
        raise_bound(lower_bound(smaller), found.cost, smaller, detail::effort_behind(search));
    if (bound.cost >= found.cost) continue;
    auto other =
        detail::find_within(problem, budget, detail::part_of_search(search, done, searches), bound);
    found.tries += other.tries;
    auto const taken = cost(simulate(other.schedule, problem));
    if (taken >= found.cost) continue;
    found.schedule = std::move(other.schedule);
    found.cost = taken;
    raise();
  }
  if (search.on_progress && !search.stop.stop_requested())
    search.on_progress({.cost = found.cost, .lower_bound = found.bound.cost, .spent = 1});
  return found;
}

ZBPP_INLINE found_schedule greedy_auto::find(problem const& problem) const {
  static_cast<void>(detail::cost_with_share(0, most_memory_for));
  auto found = detail::find_cheapest(problem, search);
  auto const most = detail::cost_with_share(found.cost, most_memory_for);
  return save_memory(problem, std::move(found), most, search);
}

}  // namespace zbpp
