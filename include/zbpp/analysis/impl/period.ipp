// SPDX-License-Identifier: Apache-2.0
//
// How `period` finds the cycle of ranks that sets it.
#pragma once

#include <zbpp/analysis/period.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// A number of ticks for each pair of ranks, of paths from the first start of one rank in a step.
class rank_matrix {
 public:
  explicit rank_matrix(int ranks) : ranks_(ranks), cells_(index(ranks) * index(ranks), never) {}

  static constexpr ticks never = -1;
  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  [[nodiscard]] ticks& operator()(int from, int to) noexcept {
    return cells_[index(std::int64_t{from} * ranks_ + to)];
  }
  [[nodiscard]] ticks operator()(int from, int to) const noexcept {
    return cells_[index(std::int64_t{from} * ranks_ + to)];
  }

 private:
  int ranks_;
  std::vector<ticks> cells_;
};

/// Finds the longest paths through one step of a schedule that `simulate` accepts.
class step_paths {
 public:
  step_paths(schedule const& schedule, problem const& problem)
      : to_first_start(problem.ranks()), to_last_end(problem.ranks()) {
    put_in_sequence(schedule, problem);
    for (int rank = 0; rank < problem.ranks(); ++rank) walk_from(rank);
  }

  rank_matrix to_first_start;  ///< of a rank, `never` where no path leads there
  rank_matrix to_last_end;

 private:
  static constexpr int nobody = -1;

  struct node {
    int rank;
    int producer;  // on another rank; those on its own have run by then
    ticks transfer;
    ticks duration;
  };

  // A rank runs until it meets a pass whose producer stands nowhere yet.
  void put_in_sequence(schedule const& schedule, problem const& problem) {
    grid<int> forward(problem.stages(), problem.microbatches(), nobody);
    grid<int> backward(problem.stages(), problem.microbatches(), nobody);
    std::vector<std::size_t> next(index(problem.ranks()), 0);
    sequence_.reserve(schedule.passes().size());
    while (sequence_.size() < schedule.passes().size()) {
      for (int rank = 0; rank < problem.ranks(); ++rank) {
        auto const row = schedule.passes(rank);
        for (auto& at = next[index(rank)]; at < row.size(); ++at) {
          auto const& p = row[at];
          node made{rank, nobody, 0, problem.costs(p.stage).of(p.kind)};
          bool const is_forward = p.kind == pass_kind::forward;
          auto const from = is_forward ? p.stage - 1 : p.stage + 1;
          if ((is_forward || p.makes_input_gradient()) && from >= 0 && from < problem.stages() &&
              problem.placement().rank_of(from) != rank) {
            made.producer = (is_forward ? forward : backward)(from, p.microbatch);
            made.transfer = problem.transfer_time(from, p.stage);
            if (made.producer == nobody) break;
          }
          auto const number = static_cast<int>(sequence_.size());
          if (is_forward) forward(p.stage, p.microbatch) = number;
          if (p.makes_input_gradient()) backward(p.stage, p.microbatch) = number;
          sequence_.push_back(made);
        }
      }
    }
    ends_.resize(sequence_.size());
  }

  void walk_from(int source) {
    std::vector<ticks> now(index(to_last_end.ranks()), never);
    std::vector<bool> has_begun(now.size(), false);
    now[index(source)] = 0;
    for (std::size_t i = 0; i < sequence_.size(); ++i) {
      auto const& n = sequence_[i];
      auto& clock = now[index(n.rank)];
      if (n.producer != nobody && ends_[index(n.producer)] != never)
        clock = std::max(clock, ends_[index(n.producer)] + n.transfer);
      if (!has_begun[index(n.rank)]) to_first_start(source, n.rank) = clock;
      has_begun[index(n.rank)] = true;
      if (clock != never) clock += n.duration;
      ends_[i] = clock;
    }
    for (int rank = 0; rank < to_last_end.ranks(); ++rank)
      to_last_end(source, rank) = now[index(rank)];
  }

  static constexpr ticks never = rank_matrix::never;
  std::vector<node> sequence_;
  std::vector<ticks> ends_;
};

/// Finds the cycle of ranks whose mean step is the longest.
///
/// It begins with the rank whose own step is the longest. While some cycle has a greater mean, the
/// longest paths with that mean taken off each step have no end; looking for them meets such a
/// cycle, and it is the next to try. Nothing overflows: a path that is longer than the mean makes a
/// cycle as soon as any step leads back, so none gets much longer.
class critical_cycle {
 public:
  explicit critical_cycle(rank_matrix const& steps)
      : steps_(steps), paths_(index(steps.ranks())), before_(index(steps.ranks())) {
    int longest = 0;
    for (int rank = 1; rank < steps.ranks(); ++rank)
      if (steps(rank, rank) > steps(longest, longest)) longest = rank;
    ranks = {longest};
    do mean = mean_of(ranks);
    while (improve());
    std::rotate(ranks.begin(), std::min_element(ranks.begin(), ranks.end()), ranks.end());
  }

  std::vector<int> ranks;
  mean_ticks mean;

 private:
  static constexpr int nobody = -1;

  [[nodiscard]] mean_ticks mean_of(std::vector<int> const& cycle) const {
    auto const length = static_cast<std::int64_t>(cycle.size());
    ticks whole = 0;
    std::int64_t rest = 0;
    for (std::size_t i = 0; i < cycle.size(); ++i) {
      auto const step = steps_(cycle[i], cycle[(i + 1) % cycle.size()]);
      whole += step / length;
      rest += step % length;
    }
    return mean_ticks::reduced(whole, rest, length);
  }

  // The same fractions of a tick as `mean` has; the sum of a path and a step less the mean.
  [[nodiscard]] mean_ticks extend(mean_ticks const& path, ticks step) const {
    mean_ticks sum{path.whole + (step - mean.whole), path.part - mean.part, mean.of};
    if (sum.part < 0) {
      sum.part += mean.of;
      --sum.whole;
    }
    return sum;
  }

  // @return whether `ranks` has become a cycle with a greater mean
  [[nodiscard]] bool improve() {
    std::fill(paths_.begin(), paths_.end(), mean_ticks{0, 0, mean.of});
    std::fill(before_.begin(), before_.end(), nobody);
    for (bool changed = true; changed;) {
      changed = false;
      for (int from = 0; from < steps_.ranks(); ++from)
        for (int to = 0; to < steps_.ranks(); ++to) {
          auto const path = extend(paths_[index(from)], steps_(from, to));
          if (from == to || path <= paths_[index(to)]) continue;
          paths_[index(to)] = path;
          before_[index(to)] = from;
          changed = true;
          if (closes_cycle(to)) return true;
        }
    }
    return false;
  }

  // Follows the path to a rank back, to that rank or to where the path begins.
  [[nodiscard]] bool closes_cycle(int last) {
    std::vector<int> back{last};
    for (int rank = before_[index(last)]; rank != nobody && rank != last;
         rank = before_[index(rank)])
      back.push_back(rank);
    bool const is_closed = before_[index(back.back())] == last;
    if (!is_closed && paths_[index(last)] <= mean) return false;
    ranks.assign(back.rbegin(), back.rend());
    return true;
  }

  rank_matrix const& steps_;
  std::vector<mean_ticks> paths_;  // longest so far to each rank, from anywhere
  std::vector<int> before_;        // the rank in front of the last on that path
};

/// @return the least offsets from `origin`, where stage 0 is, with which each rank finds its first
///         input there when it begins, and its last pass is over `most` after that
[[nodiscard]] ZBPP_INLINE std::vector<ticks> offsets_within(
    step_paths const& paths, int origin, ticks most) {
  auto const ranks = paths.to_last_end.ranks();
  std::vector<ticks> offsets;
  for (int rank = 0; rank < ranks; ++rank)
    offsets.push_back(rank == origin ? 0 : paths.to_first_start(origin, rank));
  for (bool changed = true; changed;) {
    changed = false;
    for (int from = 0; from < ranks; ++from)
      for (int to = 0; to < ranks; ++to) {
        auto const begun = offsets[index(from)];
        auto least = begun + (paths.to_last_end(from, to) - most);
        if (auto const path = paths.to_first_start(from, to); path != rank_matrix::never)
          least = std::max(least, begun + path);
        changed = changed || least > offsets[index(to)];
        offsets[index(to)] = std::max(offsets[index(to)], least);
      }
  }
  return offsets;
}

/// Follows the steps until the ranks stand to each other as they have before.
[[nodiscard]] ZBPP_INLINE std::optional<int> transient_of(rank_matrix const& steps) {
  std::map<std::vector<ticks>, int> seen;
  std::vector<ticks> free_at(index(steps.ranks()), 0);  // seen from rank 0
  for (int done = 0; done <= period_steps; ++done) {
    auto const [at, is_new] = seen.emplace(free_at, done);
    if (!is_new) return at->second;
    auto const& before = at->first;
    for (int to = 0; to < steps.ranks(); ++to) {
      auto end = before[0] + steps(0, to);
      for (int from = 1; from < steps.ranks(); ++from)
        end = std::max(end, before[index(from)] + steps(from, to));
      free_at[index(to)] = end;
    }
    for (auto const end = free_at[0]; auto& time : free_at) time -= end;
  }
  return std::nullopt;
}

}  // namespace detail

ZBPP_INLINE period_report period(schedule const& schedule, problem const& problem) {
  auto const line = simulate(schedule, problem);
  detail::step_paths const paths(schedule, problem);
  auto const& steps = paths.to_last_end;
  for (int from = 0; from < problem.ranks(); ++from)
    for (int to = 0; to < problem.ranks(); ++to)
      if (steps(from, to) == detail::rank_matrix::never)
        throw error(
            errc::bad_argument,
            "nothing here waits for rank " + std::to_string(from) +
                "; a step has F, B and W of every stage and microbatch",
            {.rank = to});
  detail::critical_cycle cycle(steps);
  auto offsets =
      detail::offsets_within(paths, problem.placement().rank_of(0), cycle.mean.rounded_up());
  return {
      .period = cycle.mean,
      .critical_ranks = std::move(cycle.ranks),
      .offsets = std::move(offsets),
      .transient = detail::transient_of(steps),
      .first_step = cost(line),
      .synchronous = makespan(line)};
}

}  // namespace zbpp
