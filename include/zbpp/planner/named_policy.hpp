// SPDX-License-Identifier: Apache-2.0
//
// Policies of the registry by name, with settings of their searches, and what they refuse.
#pragma once

#include <zbpp/model/placement.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/planner/search.hpp>

#include <string>
#include <string_view>

namespace zbpp {

/// @return the policy of `builtin_policies` with a name or title; `search` is for those that search
/// @throws error (bad_argument) listing the names there are
[[nodiscard]] any_policy named_policy(std::string_view name, search_settings const& search);

/// Asks a policy for equal times and no limits, so that it is the placement and the number of
/// microbatches that it may refuse.
/// @return why it refuses them; empty where it takes them
/// @throws error (bad_argument) when there is no such policy
[[nodiscard]] std::string placement_refusal(
    std::string_view policy, placement const& placement, int microbatches);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/named_policy.ipp>
#endif
