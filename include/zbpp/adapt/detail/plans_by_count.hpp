// SPDX-License-Identifier: Apache-2.0
//
// Plans for steps whose number of microbatches changes, such as the last one of an epoch: each is
// searched once and kept.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/planner/search.hpp>

#include <map>

namespace zbpp::detail {

/// Keeps a plan for each number of microbatches. W of each stage stays in ascending microbatch, as
/// in every plan of `greedy_auto`.
class plans_by_count {
 public:
  /// @throws error (bad_argument) when the budget is not a number of seconds
  explicit plans_by_count(search_settings search = {});

  /// Finds the plan for a number of microbatches: by `greedy_auto` the first time, and again when
  /// the placement has changed since.
  /// @param usual  costs, placement, limits and options; its number of microbatches does not matter
  /// @return the plan, kept until another placement is asked for
  /// @throws error (bad_argument) when the number is below 1 or too large; (unsupported_problem)
  ///         when no order fits the memory limits
  plan const& plan_for(plan const& usual, int microbatches);

 private:
  search_settings search_;
  std::map<int, plan> plans_;
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/adapt/impl/plans_by_count.ipp>
#endif
