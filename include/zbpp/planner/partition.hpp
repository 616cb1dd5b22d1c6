// SPDX-License-Identifier: Apache-2.0
//
// Which layers go into which stage, and which stages recompute, so that the planned cost is least
// within memory. The policy that will order the passes is asked about every cut that is tried.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/search.hpp>

#include <concepts>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <vector>

namespace zbpp {

/// Limits the search of `partition`. It counts and reads no clock: the same settings give the same
/// answer on every rank.
struct partition_settings {
  int schedules = 1000;    ///< that the policy is asked for, at most; at least 1
  std::uint64_t seed = 0;  ///< of the order in which cuts are tried
  /// Ends the search after the schedule that it is about; it answers with the best so far.
  std::stop_token stop = {};
  /// Called after each schedule, once one fits. The lower bound is that of every cut, 0 where there
  /// is none.
  std::function<void(search_progress const&)> on_progress = {};
};

/// Holds a cut of layers into stages, the problem it makes, and the schedule of least cost found.
struct layer_partition {
  std::vector<int> first_layer;  ///< of each stage
  std::vector<bool> recompute;   ///< for each stage, whether it recomputes
  zbpp::problem problem;
  zbpp::schedule schedule;
  ticks cost = 0;
  bool optimal = false;  ///< whether it is proved that no cut costs this policy less
  int schedules = 0;     ///< how many the policy was asked for
};

namespace detail {

/// Does what `partition` says, whatever the type of the policy.
[[nodiscard]] layer_partition partition_by(
    layered_problem const& model,
    std::function<schedule(problem const&)> decide,
    partition_settings settings);

}  // namespace detail

/// Cuts layers into stages and chooses the stages that recompute, so that the schedule which
/// `decide` makes costs least and keeps all memory limits.
///
/// It starts from `bottleneck_partition` and is never worse than that. Where `settings.schedules`
/// is enough for all cuts (and, with limits and layers that can recompute, all sets of stages), it
/// finds the least cost of all; else it moves boundaries and changes choices as long as it pays,
/// and starts again from random changes. A stage that is chosen recomputes: where `decide` puts no
/// R of it into the schedule, one goes in front of each of its B.
/// @param decide  a policy, or any callable that gives the same schedule for the same problem
/// @throws error (unsupported_problem) when nothing that was tried fits: it names a rank, what it
///         needs and what limit would do, or has the text with which `decide` refused; else what
///         `decide` throws
template <class Decide>
  requires requires(Decide const& d, problem const& problem) {
    { d(problem) } -> std::same_as<schedule>;
  }
[[nodiscard]] layer_partition partition(
    layered_problem const& model, Decide const& decide, partition_settings settings = {}) {
  return detail::partition_by(model, std::cref(decide), settings);
}

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/partition.ipp>
#endif
