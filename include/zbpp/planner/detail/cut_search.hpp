// SPDX-License-Identifier: Apache-2.0
//
// Which layers go into which stage, and which stages recompute, so that the planned cost is least
// within memory. The policy that will order the passes is asked about every cut that is tried.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/search.hpp>

#include <cstdint>
#include <functional>

namespace zbpp::detail {

struct bottleneck;

/// Limits a search of cuts. It counts and reads no clock: the same settings give the same answer on
/// every rank.
struct cut_settings {
  int schedules = 1000;    ///< that the policy is asked for, at most; at least 1
  std::uint64_t seed = 0;  ///< of the order in which cuts are tried
  /// Ends the search after the schedule that it is about; it answers with the best so far.
  std::function<bool()> stop = {};
  /// Called after each schedule, once one fits. The lower bound is that of every cut; 0: none.
  std::function<void(search_progress const&)> on_progress = {};
};

/// Cuts layers into stages and chooses the stages that recompute, so that the schedule which
/// `decide` makes costs least and keeps all memory limits.
///
/// It starts from a cut that gives the busiest rank the least work (docs/partition.md), and is
/// never worse than that; with one schedule it takes that cut. Where `settings.schedules` is enough
/// for all cuts (and, with limits and layers that can recompute, all sets of stages), it finds the
/// least cost of all; else it moves boundaries and changes choices as long as it pays, and starts
/// again from random changes. A stage that is chosen recomputes: where `decide` puts no R of it
/// into the schedule, one goes in front of each of its B.
/// @param decide  gives the same schedule for the same problem
/// @param balanced  the cut to begin with, where it is known
/// @return the plan, without `found_plan::bound`; `tries` says how often the policy was asked, and
///         the lower bound is about the schedules that it makes of all cuts
/// @throws error (unsupported_problem) when nothing that was tried fits: it names a rank, what it
///         needs and what limit would do, or has the text of a refusal of `decide`; as that
[[nodiscard]] found_plan search_cuts(
    problem const& model,
    std::function<schedule(problem const&)> decide,
    cut_settings settings,
    bottleneck const* balanced = nullptr);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/cut_search.ipp>
#endif
