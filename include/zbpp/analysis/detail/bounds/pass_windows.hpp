// SPDX-License-Identifier: Apache-2.0
//
// Whether the passes of a problem have time to run when no rank may take longer than a cost: each
// pass has a window, which other ranks, its own rank and its memory narrow until a window is too
// small, or nothing more follows. docs/bounds.md proves the rule.
#pragma once

#include <zbpp/analysis/detail/bounds/memory_windows.hpp>
#include <zbpp/analysis/detail/bounds/rank_windows.hpp>
#include <zbpp/analysis/detail/bounds/terms.hpp>
#include <zbpp/analysis/detail/bounds/view.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>

#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Narrows the windows of all passes. It is for placements whose first stages are on a rank each:
/// of these it is known when each rank begins.
class pass_windows {
 public:
  static constexpr int none = -1;

  /// @param effort  how much may be tried for each cost; one is a pass compared with a line
  pass_windows(bound_terms const& terms, placement const& on, double effort)
      : terms_(terms), effort_(effort) {
    for (int r = 0; r < on.ranks(); ++r) {
      auto const stages = on.stages_of(r);
      ranks_.emplace_back(times_of_lines(terms, stages), terms.microbatches());
      memory_.emplace_back(terms, stages);
      begins_.push_back(terms.down(0, 0, stages.front()));
    }
    add_edges(on);
    for (std::size_t r = 0; r < ranks_.size(); ++r) put_in_order(r);
    start_ = ranks_;
  }

  /// @return a rank whose passes have no time in a schedule that costs at most `cost`, or none
  [[nodiscard]] int stuck(ticks cost) {
    if (cost >= std::numeric_limits<ticks>::max() / 4) return none;
    spent_ = 0;
    stuck_ = none;
    ranks_ = start_;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].open(begins_[r], begins_[r] + cost);
      auto const first = ranks_[r].duration(pass_side::front, 0, 0);
      ranks_[r].start_from(pass_side::back, 0, terms_.microbatches() - 1, -(begins_[r] + first));
    }
    return settle() && try_cases() ? none : stuck_;
  }

  /// @return how much was tried for the cost that was asked for last
  [[nodiscard]] double spent() const noexcept { return spent_; }

 private:
  // A pass of a line waits for the same microbatch of another line.
  struct edge {
    std::size_t from_rank;
    int from;
    std::size_t to_rank;
    int to;
    std::vector<ticks> transfers;  // of each microbatch; one where all are alike
  };

  void add_edges(placement const& on) {
    auto const distinct = terms_.are_alike() ? 1 : terms_.microbatches();
    auto const connect = [&](pass_line from, int s, pass_line to, int t) {
      std::vector<ticks> transfers;
      for (int k = 0; k < distinct; ++k)
        transfers.push_back(
            s == t                       ? 0
            : from == pass_line::forward ? terms_.hop_down(k, s)
                                         : terms_.hop_up(k, s));
      edges_.push_back(
          {index(on.rank_of(s)),
           line_of(from, on.chunk_of(s)),
           index(on.rank_of(t)),
           line_of(to, on.chunk_of(t)),
           std::move(transfers)});
    };
    auto const last = terms_.stages() - 1;
    for (int s = 0; s < last; ++s) connect(pass_line::forward, s, pass_line::forward, s + 1);
    connect(pass_line::forward, last, pass_line::backward, last);
    for (int s = last; s >= 0; --s) {
      connect(pass_line::backward, s, pass_line::weight, s);
      if (s > 0) connect(pass_line::backward, s, pass_line::backward, s - 1);
    }
  }

  // The order that the passes of a rank always have: of one microbatch F of its stages, then B of
  // them, the last first, each before its W; and what memory forces whatever they cost.
  void put_in_order(std::size_t rank) {
    auto& windows = ranks_[rank];
    auto const last = chunk_of_line(windows.lines() - 1);
    for (int n = 0; n < terms_.microbatches(); ++n) {
      auto const put_behind = [&](pass_line before, int of, pass_line line, int chunk) {
        windows.put_before(line_of(line, chunk), line_of(before, of), n, n + 1);
      };
      put_behind(pass_line::forward, last, pass_line::backward, last);
      for (int c = 0; c <= last; ++c) {
        put_behind(pass_line::backward, c, pass_line::weight, c);
        if (c == last) break;
        put_behind(pass_line::forward, c, pass_line::forward, c + 1);
        put_behind(pass_line::backward, c + 1, pass_line::backward, c);
      }
    }
    memory_[rank].put_later_stages_first(windows);
    windows.find_order();
  }

  // Passes on what one rank knows of its passes to those that wait for them, and back.
  void pass_on() {
    for (auto const& e : edges_)
      pass_on(pass_side::front, e.from_rank, e.from, e.to_rank, e.to, e.transfers);
    for (auto e = edges_.rbegin(); e != edges_.rend(); ++e)
      pass_on(pass_side::back, e->to_rank, e->to, e->from_rank, e->from, e->transfers);
  }
  void pass_on(
      pass_side side,
      std::size_t from_rank,
      int from,
      std::size_t to_rank,
      int to,
      std::vector<ticks> const& transfers) {
    auto& first = ranks_[from_rank];
    first.keep_in_line(side, from);
    auto& then = ranks_[to_rank];
    auto const m = terms_.microbatches();
    for (int n = 0; n < m; ++n) {
      auto const k = terms_.are_alike() ? 0 : side == pass_side::front ? n : m - 1 - n;
      auto const more = first.duration(side, from, n) + transfers[index(k)];
      then.start_from(side, to, n, first.start(side, from, n) + more);
    }
  }

  // Narrows until nothing more follows, or all that may be tried is spent.
  // @return whether every pass may still have time to run
  bool settle() {
    for (bool any = true; any;) {
      any = false;
      pass_on();
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        auto& windows = ranks_[r];
        if (windows.is_possible() && windows.take_change()) {
          any = true;
          narrow(windows, memory_[r]);
        }
        if (!windows.is_possible()) {
          stuck_ = static_cast<int>(r);
          return false;
        }
        if (is_spent()) return true;
      }
    }
    return true;
  }
  void narrow(rank_windows& windows, memory_windows& memory) {
    auto const lines = static_cast<double>(windows.lines());
    spent_ += lines * lines * windows.microbatches();
    windows.find_order();
    if (!windows.is_possible()) return;
    memory.put_in_order(windows);
    for (auto side : {pass_side::front, pass_side::back})
      windows.start_after_work(
          side, [&](int line, int n) { return memory.forced(windows, side, line, n); });
  }
  [[nodiscard]] bool is_spent() const noexcept { return spent_ > effort_; }

  // How many F a rank runs before its first B of each stage, and before the first F of each later
  // stage, is what most else hangs on. Tries the least and the greatest number, and excludes them
  // where they leave no time.
  // @return whether every pass may still have time to run
  [[nodiscard]] bool try_cases() {
    for (bool any = true; any && !is_spent();) {
      any = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r)
        for (int line = 0; line < ranks_[r].lines(); ++line) {
          if (kind_of_line(line) == pass_line::weight) continue;
          for (int chunk = 0; line_of(pass_line::forward, chunk) < ranks_[r].lines(); ++chunk) {
            auto const other = line_of(pass_line::forward, chunk);
            while (excludes_least(r, line, other) || excludes_most(r, line, other)) {
              any = true;
              if (!settle()) return false;
            }
            if (is_spent()) return true;
          }
        }
    }
    return true;
  }
  [[nodiscard]] bool excludes_least(std::size_t rank, int line, int other) {
    auto const least = ranks_[rank].before(pass_side::front, line, other, 0);
    if (least >= ranks_[rank].most_before(line, other, 0)) return false;
    if (admits_with(rank, other, line, least, 1)) return false;
    ranks_[rank].put_before(line, other, 0, least + 1);
    return true;
  }
  [[nodiscard]] bool excludes_most(std::size_t rank, int line, int other) {
    auto const most = ranks_[rank].most_before(line, other, 0);
    if (ranks_[rank].before(pass_side::front, line, other, 0) >= most) return false;
    if (admits_with(rank, line, other, 0, most)) return false;
    ranks_[rank].put_before(other, line, most - 1, 1);
    return true;
  }
  // Looks what follows if the first `passes` of `other` come before pass number `n` of `line`.
  [[nodiscard]] bool admits_with(std::size_t rank, int line, int other, int n, int passes) {
    if (is_spent()) return true;
    saved_ = ranks_;
    ranks_[rank].put_before(line, other, n, passes);
    auto const is_possible = settle();
    std::swap(ranks_, saved_);
    return is_possible;
  }

  bound_terms const& terms_;
  double effort_;
  double spent_ = 0;
  int stuck_ = none;
  std::vector<rank_windows> ranks_;
  std::vector<rank_windows> start_;  // as each cost begins
  std::vector<rank_windows> saved_;  // while a case is tried
  std::vector<memory_windows> memory_;
  std::vector<ticks> begins_;  // by rank
  std::vector<edge> edges_;
};

}  // namespace zbpp::detail
