// SPDX-License-Identifier: Apache-2.0
//
// What every search of the planner can be told: its budget, its seed, when to stop, and whom to
// tell how far it is; and what it answers.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/schedule.hpp>

#include <cstdint>
#include <functional>
#include <stop_token>

namespace zbpp {

/// Tells how far a search has come.
struct search_progress {
  ticks cost = 0;         ///< the least so far
  ticks lower_bound = 0;  ///< no schedule that runs microbatches in order costs less
  double spent = 0;       ///< share of the budget, from 0 to 1
};

/// States how long a search may take, when it stops, and whom it tells about its progress.
struct search_settings {
  /// Budget: seconds of a machine that places a pass in 50 ns. It is counted in passes, so that
  /// the same problem gives the same schedule on any machine. Changes of orders come on top: with
  /// them a search that finds no proof takes up to 2.2 times as long, and up to twice that where it
  /// is within 0.2 % of the bound.
  double seconds = 0.3;
  static constexpr double most_seconds = 1e6;
  std::uint64_t seed = 3;     ///< of what is tried; this one does well on the paper's profiles
  std::stop_token stop = {};  ///< ends the search; it answers with the best so far
  std::function<void(search_progress const&)> on_progress = {};  ///< called now and then
};

/// Holds what a search found.
struct found_schedule {
  zbpp::schedule schedule;
  ticks cost = 0;          ///< exactly what `simulate` says
  cost_bound bound;        ///< no schedule that runs microbatches in order costs less
  std::int64_t tries = 0;  ///< schedules that were built and compared

  /// @return whether no schedule that runs the microbatches of each stage in order costs less
  [[nodiscard]] bool is_optimal() const noexcept { return cost <= bound.cost; }
};

}  // namespace zbpp
