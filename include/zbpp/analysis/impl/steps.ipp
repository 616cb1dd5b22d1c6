// SPDX-License-Identifier: Apache-2.0
//
// How `simulate_steps` walks the ranks of a program, step after step.
#pragma once

#include <zbpp/analysis/detail/agreement_times.hpp>
#include <zbpp/analysis/detail/pass_inputs.hpp>
#include <zbpp/analysis/steps.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Walks all ranks through one step of a right program at a time. What happens in a step depends on
/// those before it only by when each rank was done with its own part.
class steps_walk {
 public:
  steps_walk(program const& program, problem const& problem)
      : program_(program),
        problem_(problem),
        agrees_(agrees_on_steps(program)),
        tied_stages_(zbpp::tied_stages(program).size()),
        clocks_(index(program.ranks()), 0),
        lines_(clocks_.size()),
        updates_(clocks_.size()) {
    for (int rank = 0; rank < program.ranks(); ++rank) {
      first_stages_.push_back(program.placement().stages_of(rank).front());
      times_.push_back(agreement_times_of(problem, rank));
      is_late_.push_back(validates_step_before(program, rank));
      if (rank > 0 && is_late_[index(rank - 1)] && !is_late_.back()) holding_ = rank;
    }
  }

  /// Runs a step. No step follows the last one.
  void run(bool is_last) {
    is_last_ = is_last;
    inputs_.emplace(problem_);
    tied_.assign(clocks_.size(), 0);
    exchanging_.assign(clocks_.size(), 0);
    exchanged_.assign(index(program_.stages()), 0);
    tied_sent_ = 0;
    prefix_.assign(clocks_.size(), never);
    verdict_.assign(clocks_.size(), never);
    next_.assign(clocks_.size(), 0);
    if (holding_ != none && steps_ > 0) tell(holding_, clocks_[index(holding_)]);
    for (auto& row : updates_)
      if (agrees_) row.emplace_back();
    for (bool again = true; again;) {
      again = false;
      for (int rank = 0; rank < program_.ranks(); ++rank) again |= run_rank(rank);
    }
    auto const last = *std::ranges::max_element(clocks_);
    // A step adds no more than that.
    require(
        last <= std::numeric_limits<ticks>::max() / 2,
        "the steps take more than 2^62 ns together; use a coarser unit, or fewer steps");
    if (!agrees_) std::ranges::fill(clocks_, last);
    ++steps_;
  }

  [[nodiscard]] std::vector<ticks> const& clocks() const noexcept { return clocks_; }
  /// Forgets the times of passes and updates so far, which `times` would give.
  void forget() {
    for (auto& row : lines_) row.clear();
    for (auto& row : updates_)  // the last one is not validated yet
      if (row.size() > 1) row.erase(row.begin(), row.end() - 1);
  }
  [[nodiscard]] simulated_steps times() const {
    return {timeline(lines_), rows<rank_update>(updates_), *std::ranges::max_element(clocks_)};
  }

 private:
  static constexpr ticks never = pass_inputs::never;
  static constexpr int none = -1;

  // @return whether the rank came any further
  bool run_rank(int rank) {
    auto const row = program_.instructions(rank);
    auto& next = next_[index(rank)];
    auto const before = next;
    while (next < row.size() && run(rank, row.subspan(next)))
      next += next_is_paired(row, next) ? 2U : 1U;
    return next != before;
  }

  // @return false where it has to wait for another rank
  bool run(int rank, std::span<instruction const> row) {
    auto& now = clocks_[index(rank)];
    auto const& i = row.front();
    if (i.is_pass()) {
      std::array<timed_pass, 2> passes{timed_pass{i.as_pass()}};
      if (next_is_paired(row, 0)) passes[1].pass = row[1].as_pass();
      auto const together = pass_inputs::next_of(passes);
      auto const arrival = (*inputs_)(together);
      if (arrival == never) return false;
      now = inputs_->run(together, std::max(now, arrival));
      lines_[index(rank)].insert(lines_[index(rank)].end(), together.begin(), together.end());
      return true;
    }
    if (i.kind == instruction_kind::reduce_norm) return reduce(rank, now);
    if (i.kind == instruction_kind::validate) return validate(rank, now);
    if (i.kind == instruction_kind::start_reduction)
      start_exchange(rank, i.stage, problem_.reduction_time(i.stage));
    if (i.kind == instruction_kind::finish_reduction || i.kind == instruction_kind::gather_weights)
      now = std::max(now, exchanged_[index(i.stage)]);
    if (i.kind == instruction_kind::send_tied) send_tied(rank);
    if (i.kind == instruction_kind::add_tied) return add_tied(rank, now);
    if (i.is_step()) {
      bool const is_early = is_late_[index(rank)] && !is_last_;
      if (is_early && i.stage == first_stages_[index(rank)]) {
        updates_[index(rank)].back().stepped = now;
        updates_[index(rank)].back().is_early = true;
      }
      now += problem_.costs(i.stage).optimizer_step;
      start_exchange(rank, i.stage, problem_.gather_time(i.stage));
    }
    return true;
  }

  // Replicas are alike, so each is at the same place; the exchanges of one rank follow one another.
  void start_exchange(int rank, int stage, ticks takes) {
    auto& busy = exchanging_[index(rank)];
    busy = std::max(busy, clocks_[index(rank)]) + takes;
    exchanged_[index(stage)] = busy;
  }

  void send_tied(int rank) {
    auto const size = problem_.tied_size();
    for (int to = 0; to < program_.ranks(); ++to)
      tied_[index(to)] =
          std::max(tied_[index(to)], clocks_[index(rank)] + problem_.transfer()(rank, to, size));
    ++tied_sent_;
  }

  bool add_tied(int rank, ticks& now) {
    if (tied_sent_ < tied_stages_) return false;
    now = std::max(now, tied_[index(rank)]);
    return true;
  }

  bool reduce(int rank, ticks& now) {
    auto& update = updates_[index(rank)].back();
    auto const measured = now;
    auto const& times = times_[index(rank)];
    if (rank > 0 && prefix_[index(rank)] == never) return false;
    auto ready = std::max(now + times.norm, prefix_[index(rank)]);
    bool const is_end = rank + 1 == program_.ranks();
    if (!is_end) prefix_[index(rank + 1)] = ready + times.states;
    bool const is_late = is_late_[index(rank)];
    if (is_late && is_last_ && !is_end) {
      if (verdict_[index(rank)] == never) return false;
      ready = std::max(ready, verdict_[index(rank)]);
    }
    now = ready;
    update.measured = measured;
    update.validated = update.stepped = now;
    if (is_end ? !is_late || is_last_ : is_late && is_last_) tell_or_hold(rank, now);
    return true;
  }

  bool validate(int rank, ticks& now) {
    bool const is_late = is_late_[index(rank)];
    if (is_late && steps_ == 0) return true;
    bool const is_end = rank + 1 == program_.ranks();
    if (is_end) {
      if (is_late) tell(rank, now);
      return true;
    }
    if (verdict_[index(rank)] == never) return false;
    // In the last step, that on the step itself follows.
    now = std::max(now, std::exchange(verdict_[index(rank)], never));
    auto& row = updates_[index(rank)];
    auto& update = is_late ? row[row.size() - 2] : row.back();
    update.validated = now;
    if (!update.is_early) update.stepped = now;
    tell_or_hold(rank, now);
    return true;
  }

  // To a rank that goes on the verdict belongs to the next step.
  void tell_or_hold(int rank, ticks now) {
    if (rank != holding_ || is_last_) tell(rank, now);
  }
  void tell(int rank, ticks now) {
    if (rank > 0) verdict_[index(rank - 1)] = now + times_[index(rank)].verdict;
  }

  program const& program_;
  problem const& problem_;
  bool agrees_;
  std::size_t tied_stages_;
  std::vector<int> first_stages_;       // by rank
  std::vector<agreement_times> times_;  // by rank
  std::vector<bool> is_late_;           // by rank, whether it validates the step before
  int holding_ = none;                  // the rank after those that go on
  bool is_last_ = false;
  int steps_ = 0;
  std::vector<ticks> clocks_;
  std::vector<std::vector<timed_pass>> lines_;
  std::vector<std::vector<rank_update>> updates_;

  // Of one step, by rank.
  std::optional<pass_inputs> inputs_;
  std::vector<ticks> exchanging_;  // until when the rank exchanges something with its replicas
  std::vector<ticks> exchanged_;   // when that of a stage has ended; by stage
  std::vector<ticks> tied_;        // arrival of the last gradients of tied weights so far
  std::vector<ticks> prefix_;      // arrival of the states of the ranks before
  std::vector<ticks> verdict_;     // arrival of the verdict
  std::vector<std::size_t> next_;
  std::size_t tied_sent_ = 0;  // stages whose gradients are on their way
};

/// Throws what `verify` finds first.
inline void require_right(program const& program, problem const& problem) {
  require_fit(program, problem);
  if (auto const found = verify(program); !found.empty())
    throw error(errc::refused_program, found.front().location) + to_string(found.front().fault) +
        ": " + found.front().text;
}

}  // namespace detail

ZBPP_INLINE simulated_steps
simulate_steps(program const& program, problem const& problem, int count) {
  detail::require_right(program, problem);
  detail::require(count >= 1, "simulate_steps takes a number of steps from 1");
  detail::steps_walk walk(program, problem);
  for (int step = 1; step <= count; ++step) walk.run(step == count);
  return walk.times();
}

ZBPP_INLINE step_times times_of_steps(program const& program, problem const& problem) {
  step_times result{.alone = simulate_steps(program, problem, 1).end};
  detail::steps_walk walk(program, problem);
  std::map<std::vector<ticks>, std::pair<int, ticks>> seen;  // how ranks stood to each other
  std::vector<ticks> ends;
  for (int step = 0; step < period_steps; ++step) {
    walk.run(false);
    walk.forget();
    auto standing = walk.clocks();
    auto const end = standing.front();
    for (auto& time : standing) time -= end;
    auto const [at, is_new] = seen.emplace(std::move(standing), std::pair(step, end));
    if (!is_new) {
      auto const [first, begun] = at->second;
      result.steady = mean_ticks::reduced(0, end - begun, step - first);
      return result;
    }
    ends.push_back(end);
  }
  auto const half = period_steps / 2;
  result.steady =
      mean_ticks::reduced(0, ends.back() - ends[detail::index(half - 1)], period_steps - half);
  return result;
}

}  // namespace zbpp
