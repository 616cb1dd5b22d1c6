// SPDX-License-Identifier: Apache-2.0
//
// What planner/registry.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/planner/registry.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace zbpp {

ZBPP_INLINE std::string any_policy::refusal(placement const& placement, int microbatches) const {
  stage_costs const any{.forward = 1, .backward_input = 1, .backward_weight = 1};
  search_settings const shortest{.seconds = 0};
  try {
    static_cast<void>(make_(problem(placement, microbatches, any), &shortest));
  } catch (error const& refused) {
    if (refused.code() != errc::unsupported_problem) throw;
    return refused.what();
  }
  return {};
}

ZBPP_INLINE std::vector<any_policy> builtin_policies() {
  std::vector<any_policy> all;
  for_each_policy([&](auto const& policy) { all.emplace_back(policy); });
  return all;
}

ZBPP_INLINE any_policy find_policy(std::string_view name, std::vector<any_policy> const& policies) {
  std::string text = detail::joined("no policy is called '", one_line(name, 60), "'; there are");
  for (auto const& one : policies) {
    if (one.name() == name || one.title() == name) return one;
    text.append(" ").append(one.name());
  }
  throw error(errc::bad_argument, text);
}

}  // namespace zbpp
