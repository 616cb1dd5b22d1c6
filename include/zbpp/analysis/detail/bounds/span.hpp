// SPDX-License-Identifier: Apache-2.0
//
// The span of one rank bounded from below, for any placement: passes that share some rank run one
// after another, after the least of their heads and before the least of their tails.
#pragma once

#include <zbpp/analysis/detail/bounds/heads.hpp>
#include <zbpp/analysis/detail/bounds/memory.hpp>
#include <zbpp/analysis/detail/bounds/tails.hpp>
#include <zbpp/analysis/detail/bounds/terms.hpp>
#include <zbpp/analysis/detail/bounds/view.hpp>
#include <zbpp/analysis/detail/pass_lines.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Names the passes of a rank from a head and a tail on, and the span that they make necessary.
struct crowded_rank {
  ticks span = 0;
  int rank = 0;  ///< or `one_pass`
  ticks head = 0;
  ticks tail = 0;
};

/// Stands for a rank where one pass alone is meant.
inline constexpr int one_pass = -1;

/// Bounds the span of the rank from which a problem is seen.
class span_bound {
 public:
  /// @param heads  as seen from the rank, or from one that begins before it
  /// @param start  when the rank begins, on the clock of the heads
  /// @complexity O(microbatches * sum over ranks of the third power of the stages of the rank)
  span_bound(pass_heads const& heads, rank_view const& view, ticks start)
      : view_(view), heads_(heads), start_(start) {}
  span_bound(span_bound const&) = delete;
  span_bound& operator=(span_bound const&) = delete;

  /// @return the passes found that make the greatest span necessary
  [[nodiscard]] crowded_rank most_crowded() const {
    crowded_rank best;
    auto const take = [&](crowded_rank const& found) {
      if (found.span > best.span) best = found;
    };
    for (int r = 0; r < view_.placement.ranks(); ++r) {
      auto const size = heads_.lines(r).size();
      for (std::size_t from = 0; from < size; ++from)
        for (std::size_t to = 0; to < size; ++to) try_marks(r, from, to, take);
    }
    for_each_pass([&](int, ticks duration, ticks head, ticks tail) {
      take({head + duration + tail, one_pass, head, tail});
    });
    best.span -= start_;
    best.head -= start_;
    return best;
  }

  /// Adds up the passes of a rank one by one, or looks for one pass of any rank.
  /// @param least_head  from the first start of the rank
  /// @return the span that those from a head and a tail on make necessary, or a pass that has just
  ///         these; not positive if there are none
  [[nodiscard]] ticks span_of(int rank, ticks least_head, ticks least_tail) const {
    if (least_head > std::numeric_limits<ticks>::max() - start_) return 0;
    return end_of(rank, least_head + start_, least_tail) - start_;
  }

 private:
  // The same on the clock of the heads.
  [[nodiscard]] ticks end_of(int rank, ticks least_head, ticks least_tail) const {
    ticks late = 0;  // from the tail on, and from the head
    ticks all = 0;   // from the tail on
    ticks alone = 0;
    bool any = false;
    for_each_pass([&](int s, ticks duration, ticks head, ticks tail) {
      if (head == least_head && tail == least_tail) alone = std::max(alone, head + duration + tail);
      if (view_.placement.rank_of(s) != rank || tail < least_tail) return;
      all += duration;
      if (head < least_head) return;
      late += duration;
      any = true;
    });
    if (rank == one_pass) return alone;
    if (least_head < 0 || least_tail < 0) return 0;
    auto span = any ? least_head + late + least_tail : 0;
    // Or all of them after the first of a line, but for what memory lets run before that.
    for (int s : view_.placement.stages_of(rank)) {
      auto const& memory = view_.memory[index(s)];
      for (auto const& [of_line, before] :
           {std::pair(pass_line::forward, memory.before_first),
            std::pair(pass_line::backward, memory.before_first_backward)})
        if (heads_.of(of_line, s, 0) == least_head && all > before)
          span = std::max(span, least_head + (all - before) + least_tail);
    }
    return span;
  }

  // Calls `visit(stage, duration, head, tail)` for all passes between a rank's first and last.
  template <class Visit>
  void for_each_pass(Visit visit) const {
    for (int s = 0; s < view_.terms.stages(); ++s)
      for (auto line : {pass_line::forward, pass_line::backward, pass_line::weight})
        for (int k = 0; k < view_.microbatches(); ++k) {
          auto const head = heads_.of(line, s, k);
          auto const tail = tails_.of(line, s, k);
          if (head != pass_lines::none && tail != pass_lines::none)
            visit(s, view_.duration(line, s, k), head, tail);
        }
  }

  // The same as `span_of` for the marks of two lines, counted by lines.
  template <class Take>
  void try_marks(int rank, std::size_t from, std::size_t to, Take take) const {
    auto const& heads = heads_.lines(rank);
    auto const& tails = tails_.lines(rank);
    auto const has_both = [&](std::size_t head_line, std::size_t tail_line) {
      return heads.mark(head_line) != pass_lines::none && tails.mark(tail_line) != pass_lines::none;
    };
    if (!has_both(from, to)) return;
    ticks late = 0;
    ticks all = 0;
    bool any = false;
    for (std::size_t line = 0; line < heads.size(); ++line) {
      if (!has_both(line, line)) continue;
      auto const with_tail = view_.microbatches() - tails.below(to, line);
      all += heads.times().sum(line, 0, with_tail);
      late += heads.times().sum(line, heads.below(from, line), with_tail);
      any = any || with_tail > heads.below(from, line);
    }
    auto const mark = heads.mark(from);
    auto const first = heads.first(from);
    auto const tail = tails.mark(to);
    if (any) take({mark + late + tail, rank, mark, tail});
    if (heads.before(from) != pass_lines::none && all > heads.before(from))
      take({first + (all - heads.before(from)) + tail, rank, first, tail});
  }

  rank_view const& view_;
  pass_heads const& heads_;
  ticks start_;
  pass_tails tails_{view_};
};

}  // namespace zbpp::detail
