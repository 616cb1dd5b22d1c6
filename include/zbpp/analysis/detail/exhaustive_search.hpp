// SPDX-License-Identifier: Apache-2.0
//
// The true optimum of tiny problems, by branch and bound over all orders that run the microbatches
// of each stage in turn. docs/bounds.md says why it leaves no order out.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

namespace zbpp::detail {

/// Says what a search looks for, and when it gives up.
struct exhaustive_limits {
  std::int64_t nodes = 1'000'000;  ///< visited states; of each it may remember some 300 bytes
  ticks below = std::numeric_limits<ticks>::max();  ///< only orders that cost less are of interest
  ticks enough = 0;                                 ///< one that costs no more ends the search
  std::function<bool()> stop = {};                  ///< gives up where it returns true
};

/// Holds what a search found out.
struct optimum {
  bool complete = true;            ///< false: it gave up, and the rest is the best it had by then
  std::optional<ticks> cost = {};  ///< nothing when no order fits the memory and costs less
  std::vector<std::vector<pass>> order = {};  ///< one of this cost, a row per rank
  std::int64_t nodes = 0;                     ///< visited states
};

/// Searches for the least cost that any order of F, B and W has, and for an order that has it.
/// Stages where it may pay run BW in place of B and W, and R where they can, each microbatch as it
/// suits it.
///
/// The cost is that of `simulate`: passes start as soon as they can. Each stage runs its F, its R,
/// its B and its W in ascending microbatch. A rank keeps within its limit as `peak_memory` counts.
/// @param problem  one in which no pairs gain, and no messages take memory
[[nodiscard]] optimum find_optimum(problem const& problem, exhaustive_limits const& limits = {});

/// How many states a search of a tiny problem visits at most, in some tenths of a second.
inline constexpr std::int64_t tiny_nodes = 200'000;

/// @return whether a problem is so small that a search most often ends within `tiny_nodes`, and has
///         nothing that a search does not know: pairs that gain, and messages that take memory
[[nodiscard]] bool is_tiny(problem const& problem) noexcept;

/// @return whether a search of a tiny problem shows that no order costs less; `false` of others
[[nodiscard]] bool no_order_costs_less(ticks cost, problem const& problem);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/exhaustive_search.ipp>
#endif
