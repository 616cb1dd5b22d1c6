// SPDX-License-Identifier: Apache-2.0
//
// What planner/detail/plans_by_count.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/planner/detail/plans_by_count.hpp>
#include <zbpp/planner/detail/search_parts.hpp>
#include <zbpp/planner/greedy_auto.hpp>

#include <string>
#include <utility>

namespace zbpp::detail {

ZBPP_INLINE plans_by_count::plans_by_count(search_settings search, lower_options program)
    : search_(std::move(search)), program_(std::move(program)) {
  check_budget(search_);
}

ZBPP_INLINE plan const& plans_by_count::plan_for(problem const& usual, int microbatches) {
  if (!plans_.empty() && plans_.begin()->second.problem().placement() != usual.placement())
    plans_.clear();
  if (auto const known = plans_.find(microbatches); known != plans_.end()) return known->second;
  auto other = with_microbatches(usual, microbatches);
  auto order = greedy_auto{.search = search_}(other);
  plan planned(std::string(greedy_auto::title), std::move(other), std::move(order), program_);
  return plans_.emplace(microbatches, std::move(planned)).first->second;
}

}  // namespace zbpp::detail
