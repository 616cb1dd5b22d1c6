// SPDX-License-Identifier: Apache-2.0
//
// Finds a plan of a model: placement, cut, stages that recompute, and order. What a caller fixes by
// hand stays; all else is searched at once.
#pragma once

#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/planner/search.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace zbpp {

/// Says what of a plan is fixed, and how long to search for the rest.
struct plan_choices {
  /// Else the one that the problem has, linear, V, and looped with 2, 3, 4 ... chunks are tried.
  std::optional<zbpp::placement> placement = {};
  std::vector<int> first_layer = {};      ///< of each stage; needs a placement and layers
  std::vector<bool> recompute = {};       ///< for each stage; needs `first_layer`
  std::optional<any_policy> policy = {};  ///< that orders the passes; else orders are searched
  int most_chunks = 8;                    ///< per rank, of looped placements; at least 2
  /// How many cuts a policy is asked about at most; 0 for 100 where it searches, and else 1000.
  int most_cuts = 0;
  /// Share of the least cost found that a plan may cost more where it takes less memory for that,
  /// from 0 to 1; 0.005 gives up to half a percent of the time. Where orders are searched.
  double most_memory_for = 0;
  /// Whether each layer becomes a stage in the end, so that stages may change ranks between steps.
  /// Nothing then recomputes or runs in pairs.
  bool stage_per_layer = false;

  double seconds = 10;  ///< budget of all that is searched, as in `search_settings`
  std::uint64_t seed = search_settings{}.seed;
  std::function<bool()> stop = {};  ///< true ends the search, as in `search_settings`
  std::function<void(search_progress const&)> on_progress = {};  ///< called now and then

  /// @return budget, seed, stop and progress
  [[nodiscard]] search_settings search() const { return {seconds, seed, stop, on_progress}; }
};

/// Finds the cheapest plan of a model within every rank's memory limit.
///
/// The placement is one of those that `plan_choices::placement` names and that the model has layers
/// enough for. A problem without layers is cut at its stages, or at their halves where ranks have
/// fewer than two. The answer is the same on every machine.
///
/// Without a policy a larger budget never gives a worse plan. Of plans that cost the same it takes
/// the one that takes the least memory, of those the one with the fewest stages. On a placement and
/// cut that are fixed this is what `greedy_auto` finds.
///
/// With a policy the cuts are searched for which its order costs least. A policy that searches has
/// an equal share of the budget for each cut, and as much as for all of them for the best one.
/// @return the plan. Its lower bound is about all that was searched: no placement and cut costs
///         less, or, with a policy, none costs this policy less
/// @throws error (unsupported_problem) when nothing that was tried fits the memory: for the
///         closest, the rank, what it needs, and the least limit that works; or with the text of
///         the policy when that refuses the placement; (bad_argument) when a choice is out of range
///         or needs another one
[[nodiscard]] found_plan find_plan(problem const& model, plan_choices const& choices = {});

/// Finds the cheapest plan for each of several memory limits, which take the place of the model's
/// own; each gets the whole budget. With more memory no plan costs more.
/// @return one for each limit that fits, ascending; the limit is that of `found_plan::problem`
/// @throws error (bad_argument) as `find_plan`, and when a limit is negative
[[nodiscard]] std::vector<found_plan> find_plans(
    problem const& model, std::span<bytes const> limits, plan_choices const& choices = {});

/// Lowers and simulates what was found.
/// @throws error as the constructor of `plan`
[[nodiscard]] plan make_plan(found_plan found, lower_options const& options = {});

/// Says in a line what was found: placement, cut, stages that recompute, and the predicted step.
[[nodiscard]] std::string to_text(found_plan const& found);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/find_plan.ipp>
#endif
