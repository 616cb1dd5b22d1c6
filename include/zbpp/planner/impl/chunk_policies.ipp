// SPDX-License-Identifier: Apache-2.0
//
// How V-Half, V-Min and interleaved zero bubble set the budgets of their searches.
#pragma once

#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/chunk_policies.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/policy.hpp>

#include <span>
#include <string_view>
#include <utility>

namespace zbpp {
namespace detail {

/// Searches on a V within the first of some budgets for activations, and in the smaller ones.
[[nodiscard]] ZBPP_INLINE schedule find_on_v(
    problem const& problem,
    std::string_view title,
    std::span<budget_call const> memories,
    search_settings const& search) {
  support_v_shape(problem, title);
  auto const activations = memories.front()(problem);
  search_budget const budget(search);
  auto const each = share_of_policy(budget, v_budgets.size());
  auto proofs = budget.share(share_of_proofs);
  auto found = find_within(problem, activations, each.part(0, memories.size()));
  found.cost = cost(simulate(found.schedule, problem));
  search_smaller(
      problem, limits_within(problem, activations), memories.subspan(1), each, proofs, found);
  return std::move(found.schedule);
}

}  // namespace detail

ZBPP_INLINE schedule v_half::operator()(problem const& problem) const {
  return detail::find_on_v(problem, title, detail::v_budgets, search);
}

ZBPP_INLINE schedule v_min::operator()(problem const& problem) const {
  return detail::find_on_v(problem, title, std::span(detail::v_budgets).last(1), search);
}

ZBPP_INLINE schedule interleaved_zb::operator()(problem const& problem) const {
  detail::support(
      problem.placement().is_looped(),
      title,
      "needs a looped placement; this one is " + problem.placement().name());
  auto const part =
      detail::share_of_policy(detail::search_budget(search), detail::looped_budgets.size());
  auto found = detail::find_within(problem, detail::interleaved_budget(problem), part).schedule;
  auto plain = interleaved{}(problem);
  bool const is_plain_better = detail::is_within_limits(plain, problem) &&
                               cost(simulate(plain, problem)) < cost(simulate(found, problem));
  return is_plain_better ? plain : found;
}

}  // namespace zbpp
