// SPDX-License-Identifier: Apache-2.0
//
// Cuts layers for a policy that is known by its name, with one budget for all that it searches.
#pragma once

#include <zbpp/model/layers.hpp>
#include <zbpp/planner/partition.hpp>
#include <zbpp/planner/search.hpp>

#include <string_view>

namespace zbpp {

/// Says how often a policy is asked for a schedule by default: those that search take longer.
struct partition_schedules {
  static constexpr int of_rules = 1000;
  static constexpr int of_searches = 100;
};

/// Cuts layers into stages for a policy of `builtin_policies`, as `partition` does.
///
/// A policy that searches has an equal share of `search.seconds` for each cut, and all of it once
/// more for the order of the best cut. Stop and progress are those of all of it; the seed is that
/// of cuts and of searches.
/// @param policy  its name or title
/// @param schedules  that the policy is asked for, at most; 0: as many as `partition_schedules`
/// @throws error (bad_argument) when there is no such policy, or a number is out of range; else as
///         `partition`; (unsupported_problem) with the policy's text when it refuses
[[nodiscard]] found_plan partition_by_name(
    layered_problem const& model,
    std::string_view policy,
    search_settings const& search = {},
    int schedules = 0);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/partition_by_name.ipp>
#endif
