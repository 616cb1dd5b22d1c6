// SPDX-License-Identifier: Apache-2.0
//
// The list scheduler: one engine that turns a few rules per rank into a schedule, for any
// placement, times, transfers and memory limits. Every search of the planner is a search over its
// rules.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/choice.hpp>
#include <zbpp/planner/detail/pipeline_state.hpp>
#include <zbpp/planner/detail/rank_rules.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Builds schedules of one problem, again and again; it allocates in its constructor only. It walks
/// the ranks in the order of time: a rank that is free chooses its next pass, or waits for the next
/// input that it knows of.
class list_scheduler {
 public:
  /// @param reserve  bytes of each rank that are not to be used; empty for none
  explicit list_scheduler(problem const& problem, std::vector<bytes> const& reserve = {})
      : problem_(problem), state_(problem, reserve), rows_(index(problem.ranks())) {
    std::size_t begin = 0;
    for (int r = 0; r < problem.ranks(); ++r) {
      rows_[index(r)].begin = begin;
      begin += 4 * problem.placement().stages_of(r).size() * index(problem.microbatches());
    }
    codes_.resize(begin);
    leaves_ = std::bit_ceil(index(problem.ranks()));
    wakes_.resize(2 * leaves_);
    for (int r = 0; r < problem.ranks(); ++r) wakes_[leaves_ + index(r)].rank = r;
  }

  /// Makes the schedule that the rules lead to.
  /// @param most  gives up as soon as the cost is certainly more
  /// @return its cost, exactly what `simulate` says of it; `never` where it gave up, or where rules
  ///         that settle too much do not let it end
  /// @complexity O(passes * (chunks + log ranks))
  [[nodiscard]] ticks run(planner_rules const& rules, ticks most = never) {
    state_.reset(rules.stages);
    for (auto& w : wakes_) w.at = never;
    for (auto& row : rows_) row.length = 0;
    wake(state_.stage(0).rank, 0);
    ticks cost = 0;
    while (wakes_[1].at != never) {
      auto const now = wakes_[1].at;
      auto const rank = static_cast<int>(wakes_[1].rank);
      auto& row = rows_[index(rank)];
      chooser choose(state_, rank, rules.of_rank(rank), now);
      auto const next =
          rules.steps.empty() ? choose.by_rules() : choose.along(rules.steps[index(rank)]);
      if (next.stage < 0) {
        set_wake(rank, std::max(next.at, state_.rank(rank).free));
        continue;
      }
      auto const made = state_.execute(next.stage, next.what);
      codes_[row.begin + row.length++] = static_cast<std::uint16_t>(
          state_.stage(next.stage).chunk * 4 + static_cast<std::uint16_t>(next.what));
      auto const& r = state_.rank(rank);
      if (r.span() + r.work > most) return never;
      cost = std::max(cost, r.span());
      set_wake(rank, r.free);
      if (made.rank >= 0) wake(made.rank, made.at);
    }
    return is_complete() ? cost : never;
  }

  /// @return bytes that the passes of a rank may hold
  [[nodiscard]] bytes room(int rank) const noexcept {
    return state_.stage(state_.rank(rank).stages.front()).limit;
  }

  /// @return how many passes the last run placed
  [[nodiscard]] std::size_t placed() const noexcept {
    std::size_t sum = 0;
    for (auto const& row : rows_) sum += row.length;
    return sum;
  }

  /// @return the schedule of the last run, which must not have given up
  [[nodiscard]] schedule order() const {
    constexpr std::array kinds{
        pass_kind::forward,
        pass_kind::backward_input,
        pass_kind::backward_weight,
        pass_kind::recompute};
    rows<pass> passes;
    passes.reserve(rows_.size(), placed());
    std::vector<std::array<std::int32_t, 4>> count(index(problem_.stages()));
    for (int rank = 0; rank < problem_.ranks(); ++rank) {
      auto const& row = rows_[index(rank)];
      for (std::size_t i = 0; i < row.length; ++i) {
        auto const code = codes_[row.begin + i];
        auto const stage = problem_.placement().stages_of(rank)[code / 4];
        bool const fuses = code % 4 == 1 && state_.stage(stage).fuses;
        passes.push(
            {fuses ? pass_kind::backward : kinds[code % 4],
             stage,
             count[index(stage)][code % 4]++});
      }
      passes.end_row();
    }
    return {problem_.placement(), problem_.microbatches(), std::move(passes)};
  }

 private:
  struct rank_row {
    std::size_t begin = 0;  // in codes_
    std::size_t length = 0;
  };
  struct waking {
    ticks at = never;
    std::int64_t rank = 0;
  };

  [[nodiscard]] bool is_complete() const {
    for (int s = 0; s < problem_.stages(); ++s)
      if (state_.stage(s).w != problem_.microbatches()) return false;
    return true;
  }

  // Wakes a rank at a time, or earlier where it will be.
  void wake(int rank, ticks at) noexcept {
    at = std::max(at, state_.rank(rank).free);
    if (at < wakes_[leaves_ + index(rank)].at) set_wake(rank, at);
  }
  // Goes all the way up without a branch, as no processor could foresee where to stop.
  void set_wake(int rank, ticks at) noexcept {
    auto node = leaves_ + index(rank);
    wakes_[node].at = at;
    while (node > 1) {
      auto const left = wakes_[node & ~std::size_t{1}];
      auto const right = wakes_[node | 1];
      bool const is_right = right.at < left.at;  // the lower rank is first where both are
      node /= 2;
      wakes_[node].at = is_right ? right.at : left.at;
      wakes_[node].rank = is_right ? right.rank : left.rank;
    }
  }

  problem const& problem_;
  pipeline_state state_;
  std::vector<rank_row> rows_;
  std::vector<std::uint16_t> codes_;  // chunk * 4 + action, a part for each rank
  // When each rank chooses next, as the leaves of a tree in which every node is the first of the
  // two below it: node 1 is the first of all, node leaves_ + r is rank r.
  std::vector<waking> wakes_;
  std::size_t leaves_ = 1;
};

}  // namespace zbpp::detail
