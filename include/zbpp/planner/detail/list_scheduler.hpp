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
    events_.reserve(2 * index(problem.ranks()));
  }

  /// Makes the schedule that the rules lead to.
  /// @param most  gives up as soon as the cost is certainly more
  /// @return its cost, exactly what `simulate` says of it; `never` where it gave up, or where rules
  ///         that settle too much do not let it end
  /// @complexity O(passes * (chunks + log ranks))
  [[nodiscard]] ticks run(planner_rules const& rules, ticks most = never) {
    state_.reset(rules.stages);
    events_.clear();
    for (auto& row : rows_) row = {.begin = row.begin};
    wake(state_.stage(0).rank, 0);
    ticks cost = 0;
    while (!events_.empty()) {
      auto const [now, rank] = pop();
      auto& row = rows_[index(rank)];
      if (row.wakes_at != now) continue;  // it has been called earlier since
      row.wakes_at = never;
      chooser choose(state_, rank, rules.of_rank(rank), now);
      auto const next =
          rules.steps.empty() ? choose.by_rules() : choose.along(rules.steps[index(rank)]);
      if (next.stage < 0) {
        if (next.at != never) wake(rank, next.at);
        continue;
      }
      auto const made = state_.execute(next.stage, next.what);
      codes_[row.begin + row.length++] = static_cast<std::uint16_t>(
          state_.stage(next.stage).chunk * 4 + static_cast<std::uint16_t>(next.what));
      auto const& r = state_.rank(rank);
      if (r.span() + r.work > most) return never;
      cost = std::max(cost, r.span());
      if (made.rank >= 0) wake(made.rank, made.at);
      wake(rank, r.free);
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
    ticks wakes_at = never;
  };
  struct event {
    ticks at;
    int rank;
    [[nodiscard]] friend bool operator<(event const& a, event const& b) noexcept {
      return a.at != b.at ? a.at > b.at : a.rank > b.rank;  // the heap's top is its greatest
    }
  };

  [[nodiscard]] bool is_complete() const {
    for (int s = 0; s < problem_.stages(); ++s)
      if (state_.stage(s).w != problem_.microbatches()) return false;
    return true;
  }

  void wake(int rank, ticks at) {
    at = std::max(at, state_.rank(rank).free);
    auto& wakes_at = rows_[index(rank)].wakes_at;
    if (at >= wakes_at) return;
    wakes_at = at;
    events_.push_back({at, rank});
    std::push_heap(events_.begin(), events_.end());
  }
  [[nodiscard]] event pop() {
    std::pop_heap(events_.begin(), events_.end());
    auto const top = events_.back();
    events_.pop_back();
    return top;
  }

  problem const& problem_;
  pipeline_state state_;
  std::vector<rank_row> rows_;
  std::vector<std::uint16_t> codes_;  // chunk * 4 + action, a part for each rank
  std::vector<event> events_;         // a heap
};

}  // namespace zbpp::detail
