// SPDX-License-Identifier: Apache-2.0
//
// The searches of greedy_auto: of all orders, where they are few; else of all the memory, and of
// less where that could hold more.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/detail/exhaustive_search.hpp>
#include <zbpp/analysis/reductions.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/save_memory.hpp>

#include <algorithm>
#include <utility>

namespace zbpp {

namespace detail {

/// Searches as long as the budget lasts.
[[nodiscard]] ZBPP_INLINE found_order
search_at_length(problem const& problem, search_budget const& budget) {
  auto const memories = activation_budgets(problem.placement());
  budget_shares const shares(memories.size());
  auto proofs = budget.share(share_of_proofs);
  auto const raise = [&](found_order& found) {
    if (!budget.is_stopped()) found.bound = raise_within(proofs, found.bound, found.cost, problem);
  };
  // Known orders, rules and changes of orders, in all the memory.
  auto const first = budget.share(shares.first).part(0, 1 + memories.size());
  auto found = search_once(problem, first, {}, most_near_bound);
  raise(found);
  if (found.cost > found.bound.cost) {
    // The same in less memory, where the best order may be easier to find.
    auto const before = found.cost;
    auto const each = budget.share(shares.each_smaller);
    search_smaller(problem, problem.memory_limits(), memories, each, proofs, found);
    if (found.cost < before) raise(found);
    if (!budget.is_stopped()) budget.report(found.cost, found.bound.cost, 1);
  }
  found.work += proofs.spent();
  return found;
}

/// Searches a tiny problem briefly, and then all its orders; where those are too many, at length.
[[nodiscard]] ZBPP_INLINE found_order
search_tiny(problem const& problem, search_budget const& budget) {
  constexpr double enough_seconds = 0.002;
  auto const brief = budget.of(std::min(budget.passes(), enough_seconds * passes_per_second));
  auto first = search_once(problem, brief.quiet());
  bool const is_over = search_all_orders(problem, budget, first);
  if (!budget.is_stopped()) budget.report(first.cost, first.bound.cost, 0);
  if (is_over || budget.is_stopped()) return first;
  auto found = search_at_length(problem, budget.below(first.cost, first.bound.cost));
  found.tries += first.tries;
  found.work += first.work;
  if (first.cost < found.cost) {
    found.cost = first.cost;
    found.schedule = std::move(first.schedule);
  }
  return found;
}

ZBPP_INLINE found_plan
find_order(problem const& problem, search_settings const& search, double most_memory_for) {
  search_budget const budget(search);
  static_cast<void>(cost_with_share(0, most_memory_for));
  auto const part = budget.share(1 - share_of_saving);
  auto found = is_tiny(problem) ? search_tiny(problem, part) : search_at_length(problem, part);
  auto const most = cost_with_share(found.cost, most_memory_for);
  auto saved = detail::save_memory(
      {.problem = problem,
       .schedule = std::move(found.schedule),
       .cost = found.cost,
       .bound = found.bound,
       .lower_bound = found.bound.cost,
       .tries = found.tries,
       .work = found.work},
      most,
      budget.share(share_of_saving));
  saved.schedule = end_stages_in_turn(saved.schedule, saved.problem);
  return saved;
}

}  // namespace detail

ZBPP_INLINE schedule greedy_auto::operator()(problem const& problem) const {
  return detail::find_order(problem, search, most_memory_for).schedule;
}

}  // namespace zbpp
