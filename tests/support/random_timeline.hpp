// SPDX-License-Identifier: Apache-2.0
//
// Random schedules and timelines for the tests of readers and drawings: any order of any passes,
// for neither a reader nor a drawing asks whether it could run.
#pragma once

#include <zbpp/model/placement.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>

#include <support/seeded.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace zbpp::test {

/// A placement of up to 6 ranks and 3 chunks, of any shape.
inline placement random_placement(seeded_random& values) {
  auto const ranks = static_cast<int>(values.integer(1, 6));
  auto const chunks = static_cast<int>(values.integer(1, 3));
  std::vector<int> rank_of;
  for (int s = 0; s < ranks * chunks; ++s) rank_of.push_back(s % ranks);
  values.shuffle(std::span(rank_of));
  return placement::custom(std::move(rank_of));
}

/// Passes of all stages and microbatches of a placement, some of them left out, in any order.
inline schedule random_schedule(seeded_random& values, double share = 1) {
  auto const placement = random_placement(values);
  auto const m = static_cast<int>(values.integer(1, 12));
  std::vector<std::vector<pass>> passes(static_cast<std::size_t>(placement.ranks()));
  for (int s = 0; s < placement.stages(); ++s) {
    auto& row = passes[static_cast<std::size_t>(placement.rank_of(s))];
    for (int i = 0; i < m; ++i)
      for (auto kind :
           {pass_kind::forward,
            pass_kind::backward_input,
            pass_kind::backward_weight,
            pass_kind::backward,
            pass_kind::recompute})
        if (values.chance(share)) row.push_back({kind, s, i});
  }
  for (auto& row : passes) values.shuffle(std::span(row));
  return {placement, m, passes};
}

/// A schedule that keeps every dependence and no other rule: each time, any pass whose inputs are
/// there, W and BW in any order of microbatches.
inline schedule random_runnable_schedule(seeded_random& values) {
  auto const placement = random_placement(values);
  auto const m = static_cast<int>(values.integer(1, 6));
  auto const last = placement.stages() - 1;
  std::vector<pass> left;
  for (int s = 0; s <= last; ++s)
    for (int i = 0; i < m; ++i) {
      left.push_back({pass_kind::forward, s, i});
      if (values.chance(0.5)) {
        left.push_back({pass_kind::backward, s, i});
      } else {
        left.push_back({pass_kind::backward_input, s, i});
        left.push_back({pass_kind::backward_weight, s, i});
      }
    }
  auto const is_left = [&](pass_kind kind, int s, int i) {
    return std::find(left.begin(), left.end(), pass{kind, s, i}) != left.end();
  };
  auto const may_run = [&](pass const& p) {
    using enum pass_kind;
    if (p.kind == forward) return p.stage == 0 || !is_left(forward, p.stage - 1, p.microbatch);
    if (p.kind == backward_weight) return !is_left(backward_input, p.stage, p.microbatch);
    return !is_left(forward, p.stage, p.microbatch) &&
           (p.stage == last || (!is_left(backward_input, p.stage + 1, p.microbatch) &&
                                !is_left(backward, p.stage + 1, p.microbatch)));
  };
  std::vector<std::vector<pass>> passes(static_cast<std::size_t>(placement.ranks()));
  while (!left.empty()) {
    values.shuffle(std::span(left));
    auto const next = std::find_if(left.begin(), left.end(), may_run);
    passes[static_cast<std::size_t>(placement.rank_of(next->stage))].push_back(*next);
    left.erase(next);
  }
  return {placement, m, passes};
}

/// Runs the passes of each rank one after another, with random lengths and gaps.
inline timeline random_timeline(seeded_random& values, schedule const& order, ticks most) {
  timeline line;
  for (int rank = 0; rank < order.ranks(); ++rank) {
    ticks now = values.integer(0, most);
    for (auto const& p : order.passes(rank)) {
      auto const start = now + (values.chance(0.3) ? values.integer(0, most) : 0);
      now = start + values.integer(0, most);
      line.push({p, start, now});
    }
    line.end_row();
  }
  return line;
}

}  // namespace zbpp::test
