// SPDX-License-Identifier: Apache-2.0
//
// Looks policies up, and asks them.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/named_policy.hpp>

#include <string>
#include <string_view>

namespace zbpp {

ZBPP_INLINE any_policy named_policy(std::string_view name, search_settings const& search) {
  return find_policy(builtin_policies(search), name);
}

ZBPP_INLINE std::string placement_refusal(
    std::string_view policy, placement const& placement, int microbatches) {
  stage_costs const any{.forward = 1, .backward_input = 1, .backward_weight = 1};
  auto const decide = named_policy(policy, {.seconds = 0});
  try {
    static_cast<void>(decide(problem(placement, microbatches, any)));
  } catch (error const& refused) {
    if (refused.code() != errc::unsupported_problem) throw;
    return refused.what();
  }
  return {};
}

}  // namespace zbpp
