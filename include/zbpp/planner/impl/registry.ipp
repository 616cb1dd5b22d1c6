// SPDX-License-Identifier: Apache-2.0
//
// The list of built-in policies.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/planner/registry.hpp>

namespace zbpp {

ZBPP_INLINE std::vector<any_policy> builtin_policies(search_settings const& search) {
  std::vector<any_policy> all;
  for_each_policy([&](auto policy) {
    if constexpr (requires { policy.search; }) policy.search = search;
    all.emplace_back(std::move(policy));
  });
  return all;
}

}  // namespace zbpp
