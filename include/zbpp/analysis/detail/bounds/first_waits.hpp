// SPDX-License-Identifier: Apache-2.0
//
// The waits of ranks with two stages for the first F of the second one, and for the first B. Whole
// F fill them, and if one rank waits longer, so do those that wait for it: the staircase of looped
// and V placements. docs/bounds.md proves the rule.
#pragma once

#include <zbpp/analysis/detail/bounds/terms.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace zbpp::detail {

/// Bounds what a rank with stages `a < b` idles after its first B, when it ran so many F of each
/// before: the B of `b` that belong to them must last until one whose F comes later.
class second_wait {
 public:
  second_wait(bound_terms const& terms, int a, int b)
      : a_(terms[a]),
        b_(terms[b]),
        t_(terms.of(a, 0)),
        u_(terms.of(b, 0)),
        microbatches_(terms.microbatches()),
        room_(std::max(a_.room, b_.room)),
        round_trip_(terms.there_and_back(0, b)),
        to_first_(u_.backward_input + terms.up(0, b, a)) {
    for (int s = a; s <= b; ++s) pace_ = std::max(pace_, terms.of(s, 0).backward_input);
  }

  /// @param ahead, inside  F of `a` and of `b` before the first B, at least one of each
  /// @complexity O(inside)
  [[nodiscard]] ticks idle(std::int64_t ahead, std::int64_t inside) const {
    if (inside == microbatches_) return 0;
    auto const window = round_trip_ + before_next_forward(ahead, inside);
    auto const size = std::min(a_.activation, b_.activation);
    auto least = std::numeric_limits<ticks>::max();
    // By how many B of `a` run in the window: they make room for F, and bring W.
    for (std::int64_t n = 0; n <= inside && least > 0; ++n) {
      auto const room = room_ - (ahead - n) * a_.activation - b_.activation;
      if (room < 0) continue;  // for that F of `b` which the window ends with
      auto const more = size == 0 ? 2 * microbatches_ : room / size;
      auto const work = inside * (u_.backward_input + u_.backward_weight) +
                        n * (t_.backward_input + t_.backward_weight) + u_.forward +
                        longest(more, microbatches_ - ahead, microbatches_ - inside - 1);
      auto const length = n == 0 ? window : std::max(window, to_first_ + (n - 1) * pace_);
      least = std::min(least, std::max<ticks>(0, length - work));
    }
    return least;
  }

 private:
  // What must run after the first B before the next F of `b` has room.
  [[nodiscard]] ticks before_next_forward(std::int64_t ahead, std::int64_t inside) const {
    auto const need = ahead * a_.activation + (inside + 1) * b_.activation - b_.room;
    if (need <= b_.activation - b_.weight_gradient_input) return 0;
    return std::min({u_.backward_weight, u_.backward_input, t_.backward_input});
  }

  // The most time that `n` F take, no more than so many of each stage.
  [[nodiscard]] ticks longest(std::int64_t n, std::int64_t of_a, std::int64_t of_b) const {
    bool const first = t_.forward >= u_.forward;
    auto const slow = std::min(n, first ? of_a : of_b);
    auto const fast = std::min(n - slow, first ? of_b : of_a);
    return slow * std::max(t_.forward, u_.forward) + fast * std::min(t_.forward, u_.forward);
  }

  stage_terms const& a_;
  stage_terms const& b_;
  pass_terms const& t_;  // of `a`
  pass_terms const& u_;  // of `b`
  std::int64_t microbatches_;
  bytes room_;
  ticks round_trip_;
  ticks to_first_;  // from the start of a B of `b` to the end of that of `a`
  ticks pace_ = 0;  // of the B that come to `a`
};

/// Says whether a cost leaves every rank the idle time for its first waits. It is for placements
/// whose first stages are on a rank each, and microbatches that are alike; ranks that have not just
/// one stage more pass on what they get.
class first_waits {
 public:
  static constexpr int none = -1;

  first_waits(bound_terms const& terms, placement const& on) : terms_(terms), where_(on) {
    for (int s = 0; s < terms.stages(); ++s) {
      auto const of_rank = on.stages_of(on.rank_of(s));
      before_.push_back(of_rank.size() == 2 && of_rank.back() == s ? of_rank.front() : none);
    }
    find_counts();
    ends_.resize(before_.size());
  }

  /// @return the rank that `cost` leaves too little time, or none
  /// @complexity O(ranks * pairs of numbers of F that fit a rank), at worst times the microbatches
  [[nodiscard]] int stuck(ticks cost) {
    forward_.assign(before_.size(), 0);
    for (int s = 0; s < terms_.stages(); ++s) {
      auto& start = forward_[index(s)];
      if (s > 0) start = forward_[index(s - 1)] + terms_.down(0, s - 1, s);
      if (before(s) == none) continue;
      start = first_forward(s, start, cost - work(s));
      if (start == never) return where_.rank_of(s);
      find_ends(s);
    }
    auto backward = forward_.back();
    for (int s = terms_.stages() - 1; s >= 0; --s) {
      backward += s + 1 == terms_.stages() ? terms_.of(s, 0).forward
                                           : terms_.of(s + 1, 0).backward_input + hop(s + 1, s);
      if (before(s) == none) continue;
      backward = first_backward(s, backward, cost - work(s));
      if (backward == never) return where_.rank_of(s);
    }
    return none;
  }

 private:
  static constexpr ticks never = std::numeric_limits<ticks>::max() / 2;

  // When so many F of both stages can have ended at least, the last of them of `a`, and of `b`.
  struct last_ends {
    ticks a = never;
    ticks b = never;

    [[nodiscard]] ticks any() const noexcept { return std::min(a, b); }
  };

  // The other stage of the rank of `b`, if that comes before `b` and is the only one.
  [[nodiscard]] int before(int b) const { return before_[index(b)]; }
  [[nodiscard]] ticks forward(int s) const { return terms_.of(s, 0).forward; }
  [[nodiscard]] ticks work(int b) const {
    return terms_.all(before(b)).all() + terms_.all(b).all();
  }
  [[nodiscard]] ticks hop(int from, int to) const {
    return from < to ? terms_.hop_down(0, from) : terms_.hop_up(0, from);
  }
  [[nodiscard]] bool fits(int b, std::int64_t of_a, std::int64_t of_b) const {
    auto const& t = terms_[before(b)];
    auto const& u = terms_[b];
    return of_a * t.activation + of_b * u.activation <= std::max(t.room, u.room);
  }

  // How many F of the first stage fit any rank beside so many of the second.
  void find_counts() {
    std::int64_t const m = terms_.microbatches();
    for (std::int64_t j = 0; j <= m; ++j) {
      std::int64_t most = -1;
      for (int s = 0; s < terms_.stages(); ++s) {
        if (before(s) == none) continue;
        auto const size = terms_[before(s)].activation;
        auto const room =
            std::max(terms_[s].room, terms_[before(s)].room) - j * terms_[s].activation;
        if (room >= 0) most = std::max(most, size == 0 ? m : std::min(m, room / size));
      }
      if (most < j) break;
      row_.push_back(rows_end_ - static_cast<std::size_t>(j));
      most_.push_back(most);
      rows_end_ += static_cast<std::size_t>(most - j + 1);
    }
  }

  [[nodiscard]] last_ends& ends(int b, std::int64_t i, std::int64_t j) {
    return ends_[index(b)][row_[static_cast<std::size_t>(j)] + static_cast<std::size_t>(i)];
  }

  // What the rank of the stages before `a` and `b`, if these share one, means for `i` F of `a` and
  // `j` of `b`: there, too, one of them is the last. Gives the ends of the two.
  [[nodiscard]] last_ends from_rank_before(int b, std::int64_t i, std::int64_t j) {
    auto const a = before(b);
    if (before(b - 1) == none || before(b - 1) != a - 1) return {0, 0};
    auto const& last = ends(b - 1, i, j);
    auto const end_a = last.a + hop(a - 1, a) + forward(a);
    auto const end_b = last.b + hop(b - 1, b) + forward(b);
    return {std::min(end_a, end_b + forward(a)), std::min(end_a + forward(b), end_b)};
  }

  // When F number `n` of a stage, counted from 0, has come.
  [[nodiscard]] ticks arrival(int s, std::int64_t n) const {
    return std::max(
        forward_[index(s)] + n * forward(s), terms_.down(0, 0, s) + terms_.arrival(s, n));
  }

  // When the first F of `b` can start that can do so at `need`, with whole F of `a` before it.
  [[nodiscard]] ticks first_forward(int b, ticks need, ticks idle) {
    auto const a = before(b);
    auto const& t = terms_[a];
    auto const& u = terms_[b];
    for (std::int64_t n = 1; n <= terms_.microbatches(); ++n) {
      if (n * t.activation + u.activation > u.room) break;
      auto const at = std::max(
          {need, arrival(a, n - 1) + forward(a), from_rank_before(b, n, 1).b - forward(b)});
      if (at - forward_[index(a)] - n * forward(a) <= idle) return at;
    }
    return never;
  }

  void find_ends(int b) {
    auto const a = before(b);
    ends_[index(b)].resize(rows_end_);
    for (std::int64_t j = 0; j < static_cast<std::int64_t>(most_.size()); ++j)
      for (std::int64_t i = j; i <= most_[static_cast<std::size_t>(j)]; ++i) {
        auto& here = ends(b, i, j);
        here = {};
        if (i == 0) {
          here.a = forward_[index(a)];
          continue;
        }
        auto const there = from_rank_before(b, i, j);
        if (i > j)
          here.a =
              std::max(std::max(ends(b, i - 1, j).any(), arrival(a, i - 1)) + forward(a), there.a);
        if (j > 0)
          here.b =
              std::max(std::max(ends(b, i, j - 1).any(), arrival(b, j - 1)) + forward(b), there.b);
      }
  }

  // When the first B can start that can do so at `need`, with whole F of both before it.
  [[nodiscard]] ticks first_backward(int b, ticks need, ticks idle) {
    auto const a = before(b);
    auto const start = forward_[index(a)];
    second_wait const then(terms_, a, b);
    auto least = never;
    for (std::int64_t j = 1; j < static_cast<std::int64_t>(most_.size()); ++j)
      for (std::int64_t i = j; i <= most_[static_cast<std::size_t>(j)] && fits(b, i, j); ++i) {
        auto const at = std::max(need, ends(b, i, j).any());
        if (at >= least) break;
        auto const left = idle - (at - start - i * forward(a) - j * forward(b));
        if (left >= 0 && then.idle(i, j) <= left) least = at;
      }
    return least;
  }

  bound_terms const& terms_;
  placement const& where_;
  std::vector<int> before_;
  std::vector<ticks> forward_;  // by stage: when its first F can start
  // By number of F of `b`: the most of `a`, and where the ends of none of `a` would be.
  std::vector<std::int64_t> most_;
  std::vector<std::size_t> row_;
  std::size_t rows_end_ = 0;
  std::vector<std::vector<last_ends>> ends_;  // by stage `b`
};

}  // namespace zbpp::detail
