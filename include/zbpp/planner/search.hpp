// SPDX-License-Identifier: Apache-2.0
//
// The settings that all searches of the planner have: budget, seed, stop and progress; and the
// result that all of them give.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <cstdint>
#include <functional>
#include <string>

namespace zbpp {

/// Tells how far a search has come.
struct search_progress {
  ticks cost = 0;         ///< the least so far
  ticks lower_bound = 0;  ///< no schedule that runs microbatches in order costs less
  double spent = 0;       ///< share of the budget, from 0 to 1
};

/// States how long a search may take, when it stops, and what it calls meanwhile.
struct search_settings {
  /// Budget: seconds of a machine that places a pass in 50 ns, for all parts together: searches in
  /// all the memory and in less, changes of orders, proofs, and saving memory. It is counted in
  /// passes, so that the same problem gives the same schedule on any machine. What every search
  /// does once comes on top, some microseconds a pass (docs/planner.md, "Budget").
  double seconds = 2.5;
  static constexpr double most_seconds = 1e6;
  std::uint64_t seed = 3;  ///< of what is tried; this one does well on the paper's profiles
  /// Called now and then, by the thread that searches; true ends the search, which answers with the
  /// best so far. Of a `std::stop_token` that is `[token] { return token.stop_requested(); }`.
  std::function<bool()> stop = {};
  std::function<void(search_progress const&)> on_progress = {};  ///< called now and then
};

/// Holds the best plan that a search found. Schedules that `bound` and `lower_bound` are about run
/// the microbatches of each stage in order.
struct found_plan {
  std::string policy = "find_plan";  ///< title of the policy, or this where orders were searched
  zbpp::problem problem;             ///< on the placement and with the cut that were chosen
  zbpp::schedule schedule;
  ticks cost = 0;         ///< exactly what `simulate` says
  cost_bound bound = {};  ///< no schedule of `problem` costs less
  ticks lower_bound = 0;  ///< nothing that the search chose from costs less; each says what that is
  std::int64_t tries = 0;  ///< schedules that were compared, where the search counts them
  double work = 0;         ///< what it took of its budget, in passes, where the search counts them

  /// @return whether nothing that the search chose from costs less
  [[nodiscard]] bool is_optimal() const noexcept { return cost <= lower_bound; }

  friend bool operator==(found_plan const&, found_plan const&) = default;
};

}  // namespace zbpp
