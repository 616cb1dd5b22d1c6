// SPDX-License-Identifier: Apache-2.0
//
// What analysis/reductions.hpp declares.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/reductions.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE rows<timed_reduction> reductions_of(timeline const& line, problem const& problem) {
  detail::require(
      line.ranks() == problem.ranks(), "the timeline has another number of ranks than the problem");
  rows<timed_reduction> all;
  std::vector<ticks> last_w(detail::index(problem.stages()));
  for (int rank = 0; rank < line.ranks(); ++rank) {
    std::vector<timed_reduction> own;
    constexpr ticks none = -1;
    std::ranges::fill(last_w, none);
    for (auto const& timed : line[rank]) {
      detail::require(
          timed.pass.stage >= 0 && timed.pass.stage < problem.stages(),
          "the timeline has stages that the problem has not");
      if (timed.pass.makes_weight_gradient()) last_w[detail::index(timed.pass.stage)] = timed.end;
    }
    for (int s : problem.placement().stages_of(rank))
      if (problem.replicas().count > 1 && last_w[detail::index(s)] != none)
        own.push_back({s, last_w[detail::index(s)], 0});
    std::ranges::stable_sort(own, {}, &timed_reduction::start);
    ticks free = 0;
    for (auto& sum : own) {
      sum.start = std::max(sum.start, free);
      free = sum.end = sum.start + problem.reduction_time(sum.stage);
      all.push(sum);
    }
    all.end_row();
  }
  return all;
}

ZBPP_INLINE ticks cost_with_reductions(timeline const& line, problem const& problem) {
  auto const sums = reductions_of(line, problem);
  ticks most = 0;
  for (int rank = 0; rank < line.ranks(); ++rank) {
    if (line[rank].empty()) continue;
    auto end = line[rank].back().end;
    for (auto const& sum : sums[rank]) end = std::max(end, sum.end);
    most = std::max(most, end - line[rank].front().start);
  }
  return most;
}

ZBPP_INLINE ticks lower_bound_with_reductions(problem const& problem) {
  constexpr auto most = std::numeric_limits<ticks>::max();
  auto shortest = most;  // sum of any stage
  ticks found = 0;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    ticks sums = 0;
    auto least_work = most;  // of all passes of one stage
    for (int s : problem.placement().stages_of(rank)) {
      auto const sum = problem.reduction_time(s);
      sums += sum;
      shortest = std::min(shortest, sum);
      ticks work = 0;
      for (int m = 0; m < problem.microbatches(); ++m) {
        auto const c = problem.costs(s, m);
        auto const apart = c.backward_input + c.backward_weight;
        // A pair hides at most what both passes take together less the longer one.
        work += c.forward + std::min(apart, c.of(pass_kind::backward)) - c.most_saved_by_pairing();
      }
      least_work = std::min(least_work, work);
    }
    found = std::max(found, least_work + sums);
  }
  return std::max(found, lower_bound(problem).cost + shortest);
}

namespace detail {

/// A stage of which W stand at the end of a row.
struct ending_stage {
  int stage = 0;
  ticks work = 0;  // of these W
  ticks sum = 0;   // over the replicas, after them

  // Johnson's rule: first those whose sum takes longer, the shortest work first; then the others,
  // the longest sum first.
  [[nodiscard]] bool stands_before(ending_stage const& other) const noexcept {
    bool const is_first = work < sum;
    if (is_first != (other.work < other.sum)) return is_first;
    return is_first ? work < other.work : sum > other.sum;
  }
};

/// Orders the W at the end of a row.
ZBPP_INLINE void order_end(std::span<pass> row, problem const& problem) {
  auto begin = row.size();
  while (begin > 0 && row[begin - 1].kind == pass_kind::backward_weight) --begin;
  auto const tail = row.subspan(begin);
  std::vector<ending_stage> stages;
  for (auto const& w : tail) {
    auto found = std::ranges::find(stages, w.stage, &ending_stage::stage);
    if (found == stages.end())
      found = stages.insert(found, {w.stage, 0, problem.reduction_time(w.stage)});
    found->work += problem.time(w);
  }
  std::ranges::stable_sort(
      stages, [](ending_stage const& a, ending_stage const& b) { return a.stands_before(b); });
  auto const turn_of = [&](pass const& w) {
    return std::ranges::find(stages, w.stage, &ending_stage::stage) - stages.begin();
  };
  std::ranges::stable_sort(tail, {}, turn_of);
}

}  // namespace detail

ZBPP_INLINE schedule end_stages_in_turn(schedule const& schedule, problem const& problem) {
  detail::require_fit(schedule, problem);
  if (problem.replicas().count == 1) return schedule;
  rows<pass> passes;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    auto const given = schedule.passes(rank);
    std::vector<pass> row(given.begin(), given.end());
    auto const stages = problem.placement().stages_of(rank);
    bool const may_move = !problem.memory_limit(rank) || std::ranges::all_of(stages, [&](int s) {
      return problem.costs(s).workspace == problem.costs(stages.front()).workspace;
    });
    if (may_move) detail::order_end(row, problem);
    for (auto const& p : row) passes.push(p);
    passes.end_row();
  }
  return {schedule.placement(), schedule.microbatches(), std::move(passes)};
}

}  // namespace zbpp
