// SPDX-License-Identifier: Apache-2.0
//
// How `period` finds the cycle of ranks that sets it: by walks through the passes of one step.
#pragma once

#include <zbpp/analysis/detail/rank_walk.hpp>
#include <zbpp/analysis/period.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Says when the latest path to a place ends, in whole ticks, and on which rank it begins.
struct path_end {
  static constexpr int nowhere = -1;

  ticks time = 0;
  int source = nowhere;  ///< `nowhere` where no path leads
};

/// Follows the ranks through one step, from when each of them begins to when it ends. Of paths that
/// end in the same tick, the one whose source has more of `fractions` is later.
using step_walk =
    std::function<void(std::vector<path_end>& ranks, std::vector<int> const& fractions)>;

/// Finds the longest paths through one step of a schedule that `simulate` accepts.
class step_paths {
 public:
  /// @throws error (bad_argument) naming a pass that is missing
  step_paths(schedule const& schedule, problem const& problem)
      : first_starts_(index(problem.ranks())) {
    put_in_sequence(schedule, problem);
  }

  /// A `step_walk`. @complexity O(passes)
  void walk(std::vector<path_end>& ranks, std::vector<int> const& fractions) {
    auto const is_later = [&](path_end const& a, path_end const& b) {
      if (b.source == path_end::nowhere || a.time != b.time)
        return b.source == path_end::nowhere || a.time > b.time;
      return fractions[index(a.source)] > fractions[index(b.source)];
    };
    std::vector<bool> has_begun(ranks.size(), false);
    for (std::size_t i = 0; i < sequence_.size(); ++i) {
      auto const& n = sequence_[i];
      auto& rank = ranks[index(n.rank)];
      if (n.producer != nobody) {
        auto arrival = ends_[index(n.producer)];
        arrival.time += n.transfer;
        if (arrival.source != path_end::nowhere && is_later(arrival, rank)) rank = arrival;
      }
      if (!has_begun[index(n.rank)]) first_starts_[index(n.rank)] = rank.time;
      has_begun[index(n.rank)] = true;
      if (rank.source != path_end::nowhere) rank.time += n.duration;
      ends_[i] = rank;
    }
  }
  /// @return when each rank began its first pass on the last walk; 0 where no path led there
  [[nodiscard]] std::vector<ticks> const& first_starts() const noexcept { return first_starts_; }
  [[nodiscard]] std::size_t passes() const noexcept { return sequence_.size(); }

 private:
  static constexpr int nobody = -1;

  struct node {
    int rank;
    int producer;  // on another rank; those on its own have run by then
    ticks transfer;
    ticks duration;
  };

  // A rank is blocked by a pass whose producer stands nowhere yet; that one wakes it.
  void put_in_sequence(schedule const& schedule, problem const& problem) {
    cells<int> forward(problem.stages(), problem.microbatches(), nobody);
    cells<int> backward(problem.stages(), problem.microbatches(), nobody);
    auto const& placement = problem.placement();
    sequence_.reserve(schedule.passes().size());
    rank_walk ranks(problem.ranks());
    ranks.run([&](int rank, std::size_t& at) {
      auto const row = schedule.passes(rank);
      for (; at < row.size(); ++at) {
        auto const& p = row[at];
        // The first pass of a pair takes no time, and the second the time of both, so the pair
        // begins when both inputs are there; what both make is there at the end of the second.
        bool const begins_pair = next_is_paired(row, at);
        node made{rank, nobody, 0, problem.time(p)};
        if (begins_pair) made.duration = 0;
        if (p.is_paired) made.duration = problem.pair_time(row[at - 1], p);
        bool const is_forward = p.kind == pass_kind::forward;
        bool const passes_on = is_forward || p.makes_input_gradient();
        auto const from = is_forward ? p.stage - 1 : p.stage + 1;
        if (passes_on && from >= 0 && from < problem.stages() && placement.rank_of(from) != rank) {
          made.producer = (is_forward ? forward : backward)(from, p.microbatch);
          made.transfer = problem.transfer_time(from, p.stage, p.microbatch);
          if (made.producer == nobody) return false;
        }
        auto const number = static_cast<int>(sequence_.size());
        sequence_.push_back(made);
        auto const publish = [&](pass const& done) {
          bool const goes_down = done.kind == pass_kind::forward;
          if (!goes_down && !done.makes_input_gradient()) return;
          (goes_down ? forward : backward)(done.stage, done.microbatch) = number;
          auto const to = goes_down ? done.stage + 1 : done.stage - 1;
          if (to >= 0 && to < problem.stages()) ranks.wake(placement.rank_of(to));
        };
        if (p.is_paired) publish(row[at - 1]);
        if (!begins_pair) publish(p);
      }
      return true;
    });
    ends_.resize(sequence_.size());
    for (int s = 0; s < problem.stages(); ++s)
      for (int m = 0; m < problem.microbatches(); ++m)
        for (auto const& [kind, all] :
             {std::pair{pass_kind::forward, &forward},
              std::pair{pass_kind::backward_input, &backward}})
          if ((*all)(s, m) == nobody)
            throw error(errc::bad_argument, {.rank = problem.placement().rank_of(s)}) +
                to_string(pass{kind, s, m}) +
                " is missing; a step has F and B of every stage and microbatch";
  }

  std::vector<node> sequence_;
  std::vector<path_end> ends_;
  std::vector<ticks> first_starts_;
};

/// Finds the cycle of ranks whose mean step is the longest.
///
/// It begins with the step of one rank. While some cycle has a greater mean, the longest paths with
/// that mean taken off each step have no end; looking for them meets such a cycle, and it is the
/// next to try. Nothing overflows: a path that is longer than the mean makes a cycle as soon as any
/// step leads back, so none gets much longer.
class critical_cycle {
 public:
  /// @param origin  the rank to begin with
  critical_cycle(int count, int origin, step_walk walk)
      : walk_(std::move(walk)), paths_(index(count)), before_(index(count)) {
    set({{origin, origin, step(origin, origin)}});
    while (improve()) {
    }
    std::rotate(ranks.begin(), std::min_element(ranks.begin(), ranks.end()), ranks.end());
  }

  std::vector<int> ranks;
  mean_ticks mean;

 private:
  struct step_of_cycle {
    int from = path_end::nowhere;
    int to = path_end::nowhere;
    ticks length = 0;
  };

  [[nodiscard]] ticks step(int from, int to) const {
    std::vector<path_end> clocks(paths_.size());
    clocks[index(from)].source = from;
    walk_(clocks, std::vector<int>(paths_.size(), 0));
    return clocks[index(to)].time;
  }

  void set(std::vector<step_of_cycle> const& cycle) {
    auto const length = static_cast<std::int64_t>(cycle.size());
    ticks whole = 0;
    std::int64_t rest = 0;
    ranks.clear();
    for (auto const& each : cycle) {
      ranks.push_back(each.from);
      whole += each.length / length;
      rest += each.length % length;
    }
    mean = mean_ticks::reduced(whole, rest, length);
  }

  // @return whether `ranks` has become a cycle with a greater mean
  [[nodiscard]] bool improve() {
    std::fill(paths_.begin(), paths_.end(), mean_ticks{0, 0, mean.of});
    std::fill(before_.begin(), before_.end(), step_of_cycle{});
    std::vector<path_end> clocks(paths_.size());
    std::vector<int> fractions(paths_.size());
    for (bool changed = true; changed;) {
      for (int rank = 0; auto const& path : paths_) {
        clocks[index(rank)] = {path.whole, rank};
        fractions[index(rank)] = path.part;
        ++rank;
      }
      auto const begun = clocks;
      walk_(clocks, fractions);
      changed = false;
      int farthest = 0;
      for (int to = 0; auto& known : paths_) {
        auto const [end, from] = clocks[index(to)];
        mean_ticks path{end - mean.whole, fractions[index(from)] - mean.part, mean.of};
        if (path.part < 0) {
          path.part += mean.of;
          --path.whole;
        }
        if (path > known) {
          known = path;
          before_[index(to)] = {from, to, end - begun[index(from)].time};
          changed = true;
        }
        if (known > paths_[index(farthest)]) farthest = to;
        ++to;
      }
      if (changed && closes_cycle(farthest)) return true;
    }
    return false;
  }

  // Looks for a cycle in the paths; the longest closes with a step back if longer than the mean.
  [[nodiscard]] bool closes_cycle(int farthest) {
    std::vector<int> seen(paths_.size(), path_end::nowhere);  // on the way back from which rank
    for (int last = 0; last < static_cast<int>(seen.size()); ++last) {
      int rank = last;
      while (rank != path_end::nowhere && seen[index(rank)] == path_end::nowhere) {
        seen[index(rank)] = last;
        rank = before_[index(rank)].from;
      }
      if (rank == path_end::nowhere || seen[index(rank)] != last) continue;
      set(way_to(rank));
      return true;
    }
    if (paths_[index(farthest)] <= mean) return false;
    auto way = way_to(farthest);
    way.push_back({farthest, way.front().from, step(farthest, way.front().from)});
    set(way);
    return true;
  }

  // The steps of the path to a rank, from where it begins or from that rank itself.
  [[nodiscard]] std::vector<step_of_cycle> way_to(int last) const {
    std::vector<step_of_cycle> way;
    for (int rank = last; before_[index(rank)].from != path_end::nowhere;) {
      way.push_back(before_[index(rank)]);
      rank = way.back().from;
      if (rank == last) break;
    }
    std::reverse(way.begin(), way.end());
    return way;
  }

  step_walk walk_;
  std::vector<mean_ticks> paths_;      // longest so far to each rank, from anywhere
  std::vector<step_of_cycle> before_;  // its last step
};

/// @return each rank as a path that begins there at a time
[[nodiscard]] ZBPP_INLINE std::vector<path_end> paths_from(std::vector<ticks> const& times) {
  std::vector<path_end> result;
  for (int rank = 0; auto const time : times) result.push_back({time, rank++});
  return result;
}

/// @return the least offsets from `origin`, where stage 0 is, with which each rank finds its first
///         input there when it begins, and its last pass is over `most` after that
[[nodiscard]] ZBPP_INLINE std::vector<ticks> offsets_within(
    step_paths& paths, int count, int origin, ticks most) {
  std::vector<int> const no_fractions(index(count), 0);
  std::vector<path_end> ends(index(count));
  ends[index(origin)].source = origin;
  paths.walk(ends, no_fractions);
  auto offsets = paths.first_starts();
  for (bool changed = true; changed;) {
    ends = paths_from(offsets);
    paths.walk(ends, no_fractions);
    changed = false;
    for (std::size_t rank = 0; rank < offsets.size(); ++rank) {
      auto const least = std::max(paths.first_starts()[rank], ends[rank].time - most);
      changed = changed || least > offsets[rank];
      offsets[rank] = std::max(offsets[rank], least);
    }
  }
  return offsets;
}

/// Follows the steps until the ranks stand to each other as they have before.
[[nodiscard]] ZBPP_INLINE std::optional<int> transient_of(step_paths& paths, int count) {
  std::map<std::vector<ticks>, int> seen;
  std::vector<int> const no_fractions(index(count), 0);
  std::vector<ticks> free_at(index(count), 0);  // seen from rank 0
  auto left = period_passes;
  for (int done = 0; done <= period_steps; ++done) {
    auto const [at, is_new] = seen.emplace(free_at, done);
    if (!is_new) return at->second;
    if ((left -= static_cast<std::int64_t>(paths.passes())) < 0) break;
    auto ends = paths_from(free_at);
    paths.walk(ends, no_fractions);
    for (std::size_t rank = 0; rank < ends.size(); ++rank)
      free_at[rank] = ends[rank].time - ends[0].time;
  }
  return std::nullopt;
}

}  // namespace detail

ZBPP_INLINE period_report period(schedule const& schedule, problem const& problem) {
  auto const line = simulate(schedule, problem);
  auto const first_step = cost(line);
  auto const synchronous = makespan(line);
  detail::step_paths paths(schedule, problem);
  auto const origin = problem.placement().rank_of(0);
  detail::critical_cycle cycle(
      problem.ranks(), origin, [&](auto& ranks, auto& fractions) { paths.walk(ranks, fractions); });
  auto offsets = detail::offsets_within(paths, problem.ranks(), origin, cycle.mean.rounded_up());
  return {
      .period = cycle.mean,
      .critical_ranks = std::move(cycle.ranks),
      .offsets = std::move(offsets),
      .transient = detail::transient_of(paths, problem.ranks()),
      .first_step = first_step,
      .synchronous = synchronous};
}

}  // namespace zbpp
