// SPDX-License-Identifier: Apache-2.0
//
// How long messages between ranks were on their way, read from a measured step; also where the
// clocks of the ranks have nothing to do with each other.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>

namespace gpt {

/// Calls `visit(from, to, position, made)` for each message from one rank to another: `position` is
/// that of the pass on rank `to` that needs it, `made` when what it carries was there.
template <class Visit>
void for_each_message(
    zbpp::timeline const& line,
    zbpp::placement const& placement,
    int microbatches,
    Visit const& visit) {
  zbpp::grid<zbpp::ticks> forward(placement.stages(), microbatches);
  zbpp::grid<zbpp::ticks> backward(placement.stages(), microbatches);
  for (auto const& timed : line.all()) {
    auto const& p = timed.pass;
    if (p.kind == zbpp::pass_kind::forward) forward(p.stage, p.microbatch) = timed.end;
    if (p.makes_input_gradient()) backward(p.stage, p.microbatch) = timed.end;
  }
  for (int rank = 0; rank < line.ranks(); ++rank)
    for (std::size_t i = 0; i < line[rank].size(); ++i) {
      auto const& p = line[rank][i].pass;
      bool const is_forward = p.kind == zbpp::pass_kind::forward;
      if (!is_forward && !p.makes_input_gradient()) continue;
      auto const from = p.stage + (is_forward ? -1 : 1);
      if (from < 0 || from >= placement.stages() || placement.rank_of(from) == rank) continue;
      auto const made = is_forward ? forward(from, p.microbatch) : backward(from, p.microbatch);
      visit(placement.rank_of(from), rank, i, made);
    }
}

/// Sets the clocks of a step by each other, where each rank began to count when its own step began:
/// afterwards the quickest message between two neighbours took as long there as back.
inline void align_clocks(zbpp::timeline& line, zbpp::placement const& placement, int microbatches) {
  auto const quickest = [&](int from, int to) {
    std::optional<zbpp::ticks> least;
    for_each_message(
        line, placement, microbatches, [&](int f, int t, std::size_t i, zbpp::ticks made) {
          auto const took = line[t][i].start - made;
          if (f == from && t == to) least = std::min(least.value_or(took), took);
        });
    return least;
  };
  for (int rank = 1; rank < line.ranks(); ++rank) {
    auto const there = quickest(rank - 1, rank);
    auto const back = quickest(rank, rank - 1);
    if (!there || !back) continue;  // ranks that have no stages in turn
    auto const ahead = (*there - *back) / 2;
    for (auto& timed : line[rank]) {
      timed.start -= ahead;
      timed.end -= ahead;
    }
  }
}

}  // namespace gpt
