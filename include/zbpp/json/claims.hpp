// SPDX-License-Identifier: Apache-2.0
//
// Checks what somebody else says of a plan: its times, cost, memory and bound are worked out again
// from problem and schedule alone.
#pragma once

#include <zbpp/json/plan.hpp>

#include <string>
#include <vector>

namespace zbpp::json {

/// Works out everything that a plan file says from its problem and schedule alone, and compares:
/// each start and end, cost, period, bubble rate (to 0.0001), peak memory, that the schedule may
/// run within the memory limits, and that neither bound nor optimality is claimed beyond what
/// `lower_bound` and `raise_bound` prove. How long the policy took cannot be checked.
/// @return one line for each fault, empty when there is none; of a rank's wrong times the first;
///         only what `verify` says when the schedule could not run
/// @throws error (bad_argument) when the parts of `said` do not belong together
[[nodiscard]] std::vector<std::string> check_claims(plan_report const& said);

}  // namespace zbpp::json

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/json/impl/claims.ipp>
#endif
