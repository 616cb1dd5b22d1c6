// SPDX-License-Identifier: Apache-2.0
//
// Styles of rules for whole pipelines that are known to work in some regime.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/detail/rank_rules.hpp>

#include <algorithm>
#include <vector>

namespace zbpp::detail {

/// Makes the same choices for all ranks; times are eighths of the mean F and W.
struct rule_style {
  int shape = 0;  ///< of the warm-up on one chunk per rank, or which chunk goes first on several
  bool unblock = true;
  int wait = 2;         ///< for a B that is due
  int first_wait = -1;  ///< for the first B; -1 for as long as for others
  int deep_wait = 0;    ///< for an F of a later stage that is due
  int overrun = 0;
  int forward_first = 0;  ///< on as many ranks; -1 for as many as have room beyond one per F
  int weights_kept = rank_rule::no_limit;  ///< -1 for as many as the rank's number
  int in_flight = 0;                       ///< of the first chunks; 0 for no limit
  int idle = -1;                           ///< eighths of what each rank may idle; -1 for any
  int recompute = 0;                       ///< 0 no stage, 1 all that can, 2 the first half
  int fuse = 0;                            ///< 0 no stage, 1 all that may, 2 half of them
};

/// Lists styles for linear placements, the likeliest first.
/// @source found by trying all styles on the profiles of the paper, as they are and with each time
///         changed by up to 1%, at nine memory limits, and on uneven ranks: the first alone meets
///         the lower bound in three of four cases
[[nodiscard]] inline std::vector<rule_style> linear_styles() {
  constexpr int by_rank = -1;
  constexpr int by_room = -1;
  return {
      {.wait = 1, .forward_first = 1, .idle = 8},
      {.shape = 4, .unblock = false, .wait = 1, .overrun = 1, .idle = 8},
      {.wait = 1, .overrun = 4, .forward_first = 1, .idle = 8},
      {.shape = 4, .wait = 2, .idle = 6},
      {.unblock = false, .wait = 0, .idle = 5},
      {.unblock = false, .wait = 0, .overrun = 8, .forward_first = 1},
      {.wait = 1, .overrun = 4, .forward_first = by_room},
      {.wait = 0, .forward_first = 1},
      {.wait = 4, .forward_first = by_room},
      {.shape = 4, .wait = 0, .overrun = 8, .forward_first = 1},
      {.shape = 5, .wait = 2, .overrun = 4, .forward_first = 1},
      {.wait = 4, .overrun = 4, .forward_first = by_room},
      {.wait = 8, .overrun = 8, .forward_first = 1, .weights_kept = by_rank},
      {.shape = 3, .wait = 0, .overrun = 4, .weights_kept = by_rank},
      {.wait = 1, .overrun = 8},
      {.shape = 2, .wait = 2},
      {.shape = 1, .wait = 2}};
}

/// Tells how many microbatches the first chunks of a looped placement have in flight where every
/// chunk takes memory in proportion to the way that is left to it: the first of c chunks has c
/// times the way of the last one.
/// @return 0 where memory does not limit that, and on other placements
/// @source ours: searches of looped problems within little memory make their largest steps with a
///         cap of the first chunks that is nearly always within two of this
[[nodiscard]] inline int share_of_first_chunks(problem const& problem) {
  auto const& where = problem.placement();
  if (where.is_linear() || !where.is_looped()) return 0;
  bytes share = problem.microbatches();
  for (int r = 0; r < problem.ranks(); ++r) {
    auto const limit = problem.memory_limit(r);
    if (!limit) continue;
    auto const stages = where.stages_of(r);
    auto weight = static_cast<bytes>(stages.size());
    bytes kept = 0;
    bytes room = *limit;
    for (int s : stages) {
      kept += weight-- * problem.costs(s).activation;
      room -= problem.costs(s).static_memory;
    }
    if (kept > 0)
      share = std::min(
          share, (std::max<bytes>(0, room) * static_cast<bytes>(stages.size()) + kept / 2) / kept);
  }
  return share < problem.microbatches() ? static_cast<int>(share) : 0;
}

/// Lists styles for several chunks per rank, the likeliest first.
/// @param share  of the first chunks, as `share_of_first_chunks` has it
/// @param is_v   on a V, where building blocks lead and need the time
/// @source ours: most orders of looped problems that cost too much lose that time before rank 0
///         runs its first B, which waits for the first microbatch
[[nodiscard]] inline std::vector<rule_style> chunk_styles(int share, bool is_v) {
  auto const deep_waits = is_v ? std::vector{0} : std::vector{8, 0};
  std::vector<rule_style> styles;
  for (int deep_wait : deep_waits)
    for (int wait : {2, 0})
      for (bool unblock : {true, false})
        for (int shape = 0; shape < 4; ++shape)
          for (int idle : {8, -1})
            styles.push_back(
                {.shape = shape,
                 .unblock = unblock,
                 .wait = wait,
                 .deep_wait = deep_wait,
                 .idle = idle});
  if (share == 0) return styles;
  for (int deep_wait : deep_waits)
    for (int by : {0, 1, -1, 2, -2})
      for (int shape : {3, 1, 2, 0})
        if (share + by > 0)
          styles.push_back(
              {.shape = shape,
               .unblock = false,
               .wait = 0,
               .deep_wait = deep_wait,
               .in_flight = share + by});
  return styles;
}

}  // namespace zbpp::detail
