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

/// Searches on a V with room for the activations of so many microbatches on every rank.
[[nodiscard]] ZBPP_INLINE schedule find_on_v(
    problem const& problem,
    std::string_view title,
    int microbatches,
    search_settings const& search) {
  support(
      problem.placement().is_v_shape(),
      title,
      "needs a v placement, two stages per rank; this one is " + problem.placement().name());
  std::vector<bytes> budget;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    bytes kept = 0;
    for (int s : problem.placement().stages_of(rank)) kept += problem.costs(s).activation;
    budget.push_back(kept * std::min(microbatches, problem.microbatches()));
  }
  return find_within(problem, budget, search);
}

}  // namespace detail

ZBPP_INLINE schedule v_half::operator()(problem const& problem) const {
  return detail::find_on_v(problem, title, (problem.ranks() + 2) / 2, search);
}

ZBPP_INLINE schedule v_min::operator()(problem const& problem) const {
  return detail::find_on_v(problem, title, (problem.ranks() + 4) / 3, search);
}

ZBPP_INLINE schedule interleaved_zb::operator()(problem const& problem) const {
  detail::support(
      problem.placement().is_looped(),
      title,
      "needs a looped placement; this one is " + problem.placement().name());
  auto const p = problem.ranks();
  zbpp::problem const whole_groups(
      problem.placement(),
      (problem.microbatches() + p - 1) / p * p,
      {problem.all_costs().begin(), problem.all_costs().end()});
  auto plain = interleaved{}(whole_groups);
  auto found = detail::find_within(problem, peak_activations(plain, whole_groups), search);
  bool const is_plain_better = whole_groups.microbatches() == problem.microbatches() &&
                               detail::is_within_limits(plain, problem) &&
                               cost(simulate(plain, problem)) < cost(simulate(found, problem));
  return is_plain_better ? plain : found;
}

}  // namespace zbpp
