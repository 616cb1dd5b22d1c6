// SPDX-License-Identifier: Apache-2.0
//
// The plan that takes least memory of those that cost no more, or a little more, than one found.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/search.hpp>

#include <vector>

namespace zbpp {

/// Says how much memory a plan takes. The lesser of two is the one whose fullest rank has more room
/// left, and if these are equal, the one whose ranks take less in all.
struct memory_use {
  double largest_share = 0;  ///< of the limit of a rank; without limits, bytes of a rank
  bytes sum = 0;             ///< of the peaks of all ranks

  friend bool operator==(memory_use const&, memory_use const&) = default;
  friend auto operator<=>(memory_use const&, memory_use const&) = default;
};

/// @param peaks  bytes of each rank, with edges, static memory and workspace
/// @return what the peaks come to within the limits of a problem
[[nodiscard]] memory_use memory_use_of(std::vector<bytes> const& peaks, problem const& problem);

/// Looks for a schedule of the same problem that takes less memory than the one that was found, and
/// costs no more than `most`. No handcrafted policy of the registry that costs no more takes less.
/// It takes up to the whole budget; a stop ends it, and `on_progress` is not called.
/// @param found  its problem, and a schedule within the limits of that
/// @return the plan that takes the least memory, at worst `found`; the bounds are those of `found`
/// @throws error (bad_argument) when the budget is not a number of seconds
[[nodiscard]] found_plan save_memory(found_plan found, ticks most, search_settings const& search);

/// The largest share of its cost that a plan may spend for memory: it then takes twice as long.
inline constexpr double most_memory_share = 1;

namespace detail {

class search_budget;

/// Does the same within a part of a budget.
[[nodiscard]] found_plan save_memory(found_plan found, ticks most, search_budget const& budget);

/// @return the cost with a share of it more
/// @throws error (bad_argument) when the share is out of range
[[nodiscard]] ticks cost_with_share(ticks cost, double share);

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/save_memory.ipp>
#endif
