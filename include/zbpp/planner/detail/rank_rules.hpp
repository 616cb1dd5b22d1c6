// SPDX-License-Identifier: Apache-2.0
//
// The choices that the list scheduler leaves open: a few for each rank, a few for each stage.
// Whatever they are, the schedule is valid; they only decide how good it is.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>

#include <cstdint>
#include <limits>
#include <vector>

namespace zbpp::detail {

/// Says what a rank does where it has a choice. The defaults are: B as soon as it can run, else F,
/// else W where it delays nothing.
/// @source the first four generalize arXiv 2401.10241 sec. 3.1
struct rank_rule {
  static constexpr int no_limit = std::numeric_limits<int>::max();

  int warm_up = no_limit;             ///< F before the first B
  ticks wait_for_first_backward = 0;  ///< F does not start when the first B is due within this time
  ticks wait_for_backward = 0;        ///< the same for every later B
  /// F does not start when an F of a later stage is due within this time, so that the first
  /// microbatch, which all ranks wait for, never waits for others itself.
  ticks wait_for_deep_forward = 0;
  ticks overrun = 0;  ///< W may end this much after something else could have started
  /// Idle time, from the first pass on, that may be spent waiting for a B or an F that is due; when
  /// it is spent, W goes first, however late it ends.
  ticks idle_allowance = std::numeric_limits<ticks>::max();
  bool overruns_to_the_end = true;   ///< else W delays nothing once the rank's F have run
  int weights_kept = no_limit;       ///< W that wait before W goes before F
  bool forward_first = false;        ///< where both could run, F goes before B
  bool unblock = false;              ///< where an F lacks memory, W goes before B
  bool deep_forward_first = true;    ///< of two F that could run, the later stage's
  bool deep_backward_first = false;  ///< of two B that could run, the later stage's

  friend bool operator==(rank_rule const&, rank_rule const&) = default;
};

/// Says what holds for all microbatches of a stage.
struct stage_rule {
  int in_flight = rank_rule::no_limit;  ///< most microbatches between F and B
  bool fuses = false;                   ///< B and W run as one BW
  bool recomputes = false;              ///< F keeps `recompute_input` only, and R makes the rest

  friend bool operator==(stage_rule const&, stage_rule const&) = default;
};

/// Names an F or a B of a rank: twice its chunk, and one more for B.
using step_code = std::uint16_t;

/// Holds the rules of a whole pipeline.
struct planner_rules {
  std::vector<rank_rule> ranks;
  std::vector<stage_rule> stages;
  /// For each rank all its F and B, in order, where that is settled; then only W is left to choose.
  std::vector<std::vector<step_code>> steps;

  planner_rules(int rank_count, int stage_count)
      : ranks(index(rank_count)), stages(index(stage_count)) {}

  [[nodiscard]] rank_rule const& of_rank(int rank) const noexcept { return ranks[index(rank)]; }

  friend bool operator==(planner_rules const&, planner_rules const&) = default;
};

}  // namespace zbpp::detail
