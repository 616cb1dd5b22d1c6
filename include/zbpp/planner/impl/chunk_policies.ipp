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
#include <zbpp/planner/detail/activation_budget.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/policy.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

namespace zbpp {
namespace detail {

/// Searches on a V with a budget for activations.
[[nodiscard]] ZBPP_INLINE schedule find_on_v(
    problem const& problem,
    std::string_view title,
    std::vector<bytes> const& budget,
    search_settings const& search) {
  support(
      problem.placement().is_v_shape(),
      title,
      "needs a v placement, two stages per rank; this one is " + problem.placement().name());
  return find_within(problem, budget, search).schedule;
}

}  // namespace detail

ZBPP_INLINE schedule v_half::operator()(problem const& problem) const {
  return detail::find_on_v(problem, title, detail::v_half_budget(problem), search);
}

ZBPP_INLINE schedule v_min::operator()(problem const& problem) const {
  return detail::find_on_v(problem, title, detail::v_min_budget(problem), search);
}

ZBPP_INLINE schedule interleaved_zb::operator()(problem const& problem) const {
  detail::support(
      problem.placement().is_looped(),
      title,
      "needs a looped placement; this one is " + problem.placement().name());
  auto found = detail::find_within(problem, detail::interleaved_budget(problem), search).schedule;
  if (problem.microbatches() % problem.ranks() != 0) return found;
  auto plain = interleaved{}(problem);
  bool const is_plain_better = detail::is_within_limits(plain, problem) &&
                               cost(simulate(plain, problem)) < cost(simulate(found, problem));
  return is_plain_better ? plain : found;
}

}  // namespace zbpp
