// SPDX-License-Identifier: Apache-2.0
//
// How a plan is found around what is fixed.
#pragma once

#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/planner/auto_plan.hpp>
#include <zbpp/planner/choose_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/named_policy.hpp>
#include <zbpp/planner/partition_by_name.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE found_plan choose_plan(layered_problem const& model, plan_choices const& choices) {
  if (!choices.placement) {
    detail::require(
        choices.first_layer.empty() && choices.policy.empty(),
        "plan_choices fixes a cut or a policy without a placement; give the placement, too");
    return auto_plan{.search = choices.search}(model);
  }
  auto const placed = with_placement(model, *choices.placement);
  auto const policy = choices.policy.empty() ? std::string(greedy_auto::name) : choices.policy;
  if (choices.first_layer.empty()) return partition_by_name(placed, policy, choices.search);
  auto cut = placed.with(choices.first_layer);
  auto order = named_policy(policy, choices.search)(cut);
  auto const took = cost(simulate(order, cut));
  return {
      .problem = std::move(cut),
      .schedule = std::move(order),
      .cost = took,
      .first_layer = choices.first_layer};
}

ZBPP_INLINE std::string to_text(found_plan const& found) {
  auto const& placement = found.problem.placement();
  std::string text = detail::joined(placement.name()) + " placement of " + placement.stages() +
                     " stages on " + placement.ranks() + " ranks";
  if (!found.first_layer.empty()) {
    text += ", which begin at layers";
    for (auto const first : found.first_layer) text += detail::joined(" ", first);
  }
  std::string again;
  for (std::size_t s = 0; s < found.recompute.size(); ++s)
    if (found.recompute[s]) again += detail::joined(" ", s);
  if (!again.empty()) text += "; recompute in stages" + again;
  text += "; a step is predicted to take " + fixed_text(to_milliseconds(found.cost), 3) + " ms";
  if (found.is_optimal()) text += ", and nothing that was searched takes less";
  return text;
}

}  // namespace zbpp
