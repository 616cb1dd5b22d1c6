// SPDX-License-Identifier: Apache-2.0
//
// Adds up the passes of one rank that must come before a pass, or after it: the part of the bounds
// of any placement that knows that a rank runs one pass at a time.
#pragma once

#include <zbpp/analysis/detail/line_times.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Holds the passes of a rank as lines, one per stage and kind, with a head each: a time before
/// which the pass cannot start. Heads ascend along a line.
///
/// What has its heads at a time or later takes all its time after it. The times tried are the marks
/// of the lines. And of all passes of the rank, memory may let only so much time pass before the
/// first of a line.
class pass_lines {
 public:
  static constexpr ticks none = -1;

  /// @param times   of the passes of each line
  /// @param before  the most that the rank can run before the first pass of each line; `none` where
  ///                nothing is known
  pass_lines(line_times times, std::vector<ticks> before)
      : times_(std::move(times)),
        before_(std::move(before)),
        mark_(times_.lines(), none),
        first_(times_.lines(), none),
        below_(times_.lines() * times_.lines(), 0) {}

  [[nodiscard]] std::size_t size() const noexcept { return times_.lines(); }
  [[nodiscard]] line_times const& times() const noexcept { return times_; }
  [[nodiscard]] ticks mark(std::size_t line) const noexcept { return mark_[line]; }
  /// @return the head of the first pass of a line, `none` if it has no pass
  [[nodiscard]] ticks first(std::size_t line) const noexcept { return first_[line]; }
  /// @return how many passes of a line have a head before the mark of line `marked`
  [[nodiscard]] std::int64_t below(std::size_t marked, std::size_t line) const noexcept {
    return below_[marked * size() + line];
  }
  /// @return the most that the rank can run before the first pass of a line, `none` if unknown
  [[nodiscard]] ticks before(std::size_t line) const noexcept { return before_[line]; }

  /// Adds the first pass of a line. Lines get their first passes before any gets its second.
  void start(std::size_t line, ticks head, ticks mark) {
    mark_[line] = mark;
    for (std::size_t other = 0; other < size(); ++other)
      if (first_[other] != none && first_[other] < mark) below_[line * size() + other] = 1;
    first_[line] = head;
    add(line, head);
  }

  /// Adds a pass to the end of a line.
  void add(std::size_t line, ticks head) {
    for (std::size_t marked = 0; marked < size(); ++marked)
      if (head < mark_[marked]) ++below_[marked * size() + line];
  }

  /// @param counts  how many passes of each line there are, from its first on
  /// @param more    called with a time, gives that of further passes whose heads are there or later
  /// @return when all of them can have ended
  template <class More>
  [[nodiscard]] ticks end_of(std::vector<std::int64_t> const& counts, More more) const {
    ticks end = 0;
    auto all = more(0);
    for (std::size_t line = 0; line < size(); ++line) all += times_.sum(line, 0, counts[line]);
    for (std::size_t marked = 0; marked < size(); ++marked) {
      if (mark_[marked] == none) continue;
      auto const further = more(mark_[marked]);
      auto sum = mark_[marked] + further;
      bool any = further > 0;
      auto const* const below_mark = &below_[marked * size()];
      for (std::size_t line = 0; line < size(); ++line) {
        sum += times_.sum(line, below_mark[line], counts[line]);
        any = any || counts[line] > below_mark[line];
      }
      if (any) end = std::max(end, sum);
      if (before_[marked] != none && all > before_[marked])
        end = std::max(end, first_[marked] + (all - before_[marked]));
    }
    return end;
  }

 private:
  line_times times_;
  std::vector<ticks> before_;
  std::vector<ticks> mark_;
  std::vector<ticks> first_;
  std::vector<std::int64_t> below_;  // by marked line and line
};

}  // namespace zbpp::detail
