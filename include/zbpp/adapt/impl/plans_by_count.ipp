// SPDX-License-Identifier: Apache-2.0
//
// What adapt/detail/plans_by_count.hpp declares.
#pragma once

#include <zbpp/adapt/detail/plans_by_count.hpp>
#include <zbpp/config.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/greedy_auto.hpp>

#include <utility>

namespace zbpp::detail {

ZBPP_INLINE plans_by_count::plans_by_count(search_settings search) : search_(std::move(search)) {
  check_budget(search_);
}

ZBPP_INLINE plan const& plans_by_count::plan_for(plan const& usual, int microbatches) {
  auto const& problem = usual.problem();
  if (!plans_.empty() && plans_.begin()->second.problem().placement() != problem.placement())
    plans_.clear();
  if (auto const known = plans_.find(microbatches); known != plans_.end()) return known->second;
  auto planned = make_plan(
      greedy_auto{.search = search_}, with_microbatches(problem, microbatches), usual.options());
  return plans_.emplace(microbatches, std::move(planned)).first->second;
}

}  // namespace zbpp::detail
