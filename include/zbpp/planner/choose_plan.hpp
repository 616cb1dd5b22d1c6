// SPDX-License-Identifier: Apache-2.0
//
// Plans a model of layers with as much fixed by hand as a caller wants, and searches the rest.
#pragma once

#include <zbpp/model/layers.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/planner/search.hpp>

#include <optional>
#include <string>
#include <vector>

namespace zbpp {

/// Says what of a plan is fixed. What is left open is searched.
struct plan_choices {
  std::optional<zbpp::placement> placement = {};  ///< else all that `auto_plan` tries
  std::vector<int> first_layer = {};              ///< of each stage; needs a placement
  std::string policy = {};      ///< name or title; needs a placement; else `greedy_auto`
  search_settings search = {};  ///< of all that is searched
};

/// Finds a plan of a model.
/// @return the plan, its cut, and a lower bound where the search knows one
/// @throws error (bad_argument) when a cut or a policy is fixed without a placement; else as
///         `auto_plan`, `partition_by_name` and the policy
[[nodiscard]] found_plan choose_plan(
    layered_problem const& model, plan_choices const& choices = {});

/// Says in a line what was chosen: placement, cut, stages that recompute, and the predicted step.
[[nodiscard]] std::string to_text(found_plan const& found);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/choose_plan.ipp>
#endif
