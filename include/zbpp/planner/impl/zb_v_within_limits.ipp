// SPDX-License-Identifier: Apache-2.0
//
// Chooses between ZB-V's own order, those of policies with less memory, and a search.
#pragma once

#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/search_once.hpp>
#include <zbpp/planner/detail/search_parts.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/zb_v_within_limits.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <utility>

namespace zbpp {

ZBPP_INLINE schedule zb_v_within_limits::operator()(problem const& problem) const {
  detail::check_budget(search);
  auto order = zb_v{}(problem);
  if (!detail::is_within_limits(order, problem)) return greedy_auto{.search = search}(problem);
  auto const taken = cost(simulate(order, problem));
  detail::found_order found{.schedule = std::move(order), .cost = taken};
  detail::proof_budget proofs(detail::share_of_proofs * detail::passes_of(search));
  auto const each = detail::share_of_policy(search, detail::v_budgets.size());
  detail::search_smaller(problem, {}, detail::v_budgets, each, proofs, found);
  return std::move(found.schedule);
}

}  // namespace zbpp
