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
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/detail/search_parts.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/save_memory.hpp>

#include <algorithm>
#include <utility>

namespace zbpp {

namespace detail {

/// Searches as long as the settings say.
[[nodiscard]] ZBPP_INLINE found_order
search_at_length(problem const& problem, search_settings const& search) {
  auto const budgets = activation_budgets(problem.placement());
  budget_shares const shares(budgets.size());
  proof_budget proofs(share_of_proofs * passes_of(search));
  auto found = search_once(
      problem,
      part_of_search(share_of(search, shares.first), 0, 1 + budgets.size()),
      {},
      most_near_bound);
  auto const raise = [&] {
    if (!is_stopped(search.stop)) found.bound = proofs.raise(found.bound, found.cost, problem);
  };
  raise();
  if (found.cost > found.bound.cost) {
    auto const first = found.cost;
    auto const each = share_of(search, shares.each_smaller);
    search_smaller(problem, problem.memory_limits(), budgets, each, proofs, found);
    if (found.cost < first) raise();
    if (search.on_progress && !is_stopped(search.stop))
      search.on_progress({.cost = found.cost, .lower_bound = found.bound.cost, .spent = 1});
  }
  found.work += proofs.spent();
  return found;
}

/// Searches a tiny problem briefly, and then all its orders; where those are too many, at length.
[[nodiscard]] ZBPP_INLINE found_order
search_tiny(problem const& problem, search_settings const& search) {
  auto brief = search;
  constexpr double enough_seconds = 0.002;
  brief.seconds = std::min(brief.seconds, enough_seconds);
  brief.on_progress = {};
  auto first = search_once(problem, brief);
  bool const is_over = search_all_orders(problem, search, first);
  if (search.on_progress && !is_stopped(search.stop))  // hardly any budget is spent
    search.on_progress({.cost = first.cost, .lower_bound = first.bound.cost});
  if (is_over || is_stopped(search.stop)) return first;
  auto rest = search;
  if (search.on_progress)
    rest.on_progress = [&](search_progress now) {
      now.cost = std::min(now.cost, first.cost);
      now.lower_bound = std::min(std::max(now.lower_bound, first.bound.cost), now.cost);
      search.on_progress(now);
    };
  auto found = search_at_length(problem, rest);
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
  check_budget(search);
  static_cast<void>(cost_with_share(0, most_memory_for));
  auto const part = share_of(search, 1 - share_of_saving);
  auto found = is_tiny(problem) ? search_tiny(problem, part) : search_at_length(problem, part);
  auto const most = cost_with_share(found.cost, most_memory_for);
  auto saved = save_memory(
      {.problem = problem,
       .schedule = std::move(found.schedule),
       .cost = found.cost,
       .bound = found.bound,
       .lower_bound = found.bound.cost,
       .tries = found.tries,
       .work = found.work},
      most,
      share_of(search, share_of_saving));
  saved.schedule = end_stages_in_turn(saved.schedule, saved.problem);
  return saved;
}

}  // namespace detail

ZBPP_INLINE schedule greedy_auto::operator()(problem const& problem) const {
  return detail::find_order(problem, search, most_memory_for).schedule;
}

}  // namespace zbpp
