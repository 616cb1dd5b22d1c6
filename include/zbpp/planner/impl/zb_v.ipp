// SPDX-License-Identifier: Apache-2.0
//
// Chooses between ZB-V's own order and a search.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/search_parts.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/zb_v.hpp>
#include <zbpp/policy/fixed_zb_v.hpp>

namespace zbpp {

ZBPP_INLINE schedule zb_v::operator()(problem const& problem) const {
  detail::check_budget(search);
  auto own = fixed_zb_v{}(problem);
  if (problem.memory_limits().empty() || detail::is_within_limits(own, problem)) return own;
  return greedy_auto{.search = search}(problem);
}

}  // namespace zbpp
