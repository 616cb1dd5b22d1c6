// SPDX-License-Identifier: Apache-2.0
//
// When the passes of one rank can run, and which of them certainly come before which: what it means
// for their windows that a rank runs one pass at a time. docs/bounds.md proves the rule.
#pragma once

#include <zbpp/analysis/detail/bounds/work_tree.hpp>
#include <zbpp/analysis/detail/line_times.hpp>
#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Says from which end passes are counted. From the back the last pass of a line is number 0 and
/// time runs backwards, so that what holds of starts holds of ends, too.
enum class pass_side : std::uint8_t { front, back };

[[nodiscard]] constexpr pass_side opposite(pass_side side) noexcept {
  return side == pass_side::front ? pass_side::back : pass_side::front;
}

/// States work that must come before a pass beside the passes that are known to: how much, and
/// when it can begin at the earliest.
struct further_work {
  ticks time = 0;
  ticks from = 0;
};

/// Holds the windows of the passes of one rank, in lines of passes that run in order: each pass
/// runs between the start of its window and the end.
class rank_windows {
 public:
  /// @param times  of the passes of each line
  rank_windows(line_times times, int microbatches)
      : times_(std::move(times)), microbatches_(microbatches) {
    constexpr auto always = std::numeric_limits<ticks>::max() / 4;
    auto const size = times_.lines();
    for (auto& starts : starts_) starts.assign(size * count(), -always);
    for (auto& before : before_) before.assign(size * size * count(), 0);
    for (int line = 0; line < lines(); ++line)
      for (int n = 0; n < microbatches_; ++n) before_[0][at(line, line, n)] = n;
  }

  [[nodiscard]] int lines() const noexcept { return static_cast<int>(times_.lines()); }
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  [[nodiscard]] ticks duration(pass_side side, int line, int n) const noexcept {
    return times_.of(index(line), side == pass_side::front ? n : microbatches_ - 1 - n);
  }

  /// Lets all passes run at any time from `first` to `last`. What is known of their order remains.
  void open(ticks first, ticks last) {
    std::fill(starts_[0].begin(), starts_[0].end(), first);
    std::fill(starts_[1].begin(), starts_[1].end(), -last);
    is_possible_ = true;
    is_changed_ = true;
  }

  /// @return the least time at which pass number `n` of a line starts, on the clock of that side
  [[nodiscard]] ticks start(pass_side side, int line, int n) const noexcept {
    return starts_[index(side)][at(line, n)];
  }
  /// @return how many passes of `other` must precede pass `n` of `line`; from the back: follow
  [[nodiscard]] int before(pass_side side, int line, int other, int n) const noexcept {
    return before_[index(side)][at(line, other, n)];
  }
  [[nodiscard]] int most_before(int line, int other, int n) const noexcept {
    if (line == other) return n;
    return microbatches_ - before(pass_side::back, line, other, microbatches_ - 1 - n);
  }
  [[nodiscard]] bool is_possible() const noexcept { return is_possible_; }
  [[nodiscard]] bool take_change() noexcept { return std::exchange(is_changed_, false); }

  /// Says that the passes cannot all run.
  void exclude() noexcept { is_possible_ = false; }
  /// Lets a pass start no earlier.
  void start_from(pass_side side, int line, int n, ticks time) {
    auto& start = starts_[index(side)][at(line, n)];
    if (time <= start) return;
    start = time;
    is_changed_ = true;
    auto const latest_end = -starts_[index(opposite(side))][at(line, microbatches_ - 1 - n)];
    if (time + duration(side, line, n) > latest_end) is_possible_ = false;
  }
  /// Lets no pass of a line start before the one in front of it has ended.
  void keep_in_line(pass_side side, int line) {
    for (int n = 1; n < microbatches_; ++n)
      start_from(side, line, n, start(side, line, n - 1) + duration(side, line, n - 1));
  }
  /// Puts the first `passes` of `other` before pass number `n` of `line`.
  void put_before(int line, int other, int n, int passes) {
    auto& known = before_[0][at(line, other, n)];
    if (passes <= known) return;
    is_changed_ = true;
    // A pass cannot come before itself.
    if (passes > microbatches_ || line == other) is_possible_ = false;
    known = std::min(passes, microbatches_);
  }

  /// Finds which passes can only come before which: those that could not end in time after, and
  /// those before such.
  /// @complexity O(lines^3 * microbatches)
  void find_order() {
    for (int line = 0; line < lines(); ++line)
      for (int other = 0; other < lines(); ++other)
        if (other != line) compare(line, other);
    for (int line = 0; line < lines(); ++line)
      for (int other = 0; other < lines(); ++other)
        if (other != line) follow(line, other);
    for (int line = 0; line < lines(); ++line)
      for (int other = 0; other < lines(); ++other) mirror(line, other);
  }

  /// Starts each pass only once all that comes before it can have run.
  /// @param further  called with a line and a number, gives the work beside the passes known
  /// @complexity O(lines^2 * microbatches * log(lines * microbatches))
  template <class Further>
  void start_after_work(pass_side side, Further further) {
    auto const& starts = starts_[index(side)];
    by_start_.resize(starts.size());
    std::iota(by_start_.begin(), by_start_.end(), std::size_t{0});
    std::sort(by_start_.begin(), by_start_.end(), [&](std::size_t a, std::size_t b) {
      return starts[a] < starts[b];
    });
    sorted_.resize(starts.size());
    place_.resize(starts.size());
    for (std::size_t i = 0; i < by_start_.size(); ++i) {
      sorted_[i] = starts[by_start_[i]];
      place_[by_start_[i]] = i;
    }
    for (int line = 0; line < lines(); ++line) {
      tree_.clear(starts.size());
      taken_.assign(index(lines()), 0);
      for (int n = 0; n < microbatches_; ++n) {
        for (int other = 0; other < lines(); ++other) {
          auto& known = before_[index(side)][at(line, other, n)];
          auto& taken = taken_[index(other)];
          for (; taken < known; ++taken) {
            auto const place = place_[at(other, taken)];
            tree_.add(place, sorted_[place], duration(side, other, taken));
          }
          // What comes before the pass in front of it comes before this one, too; else `further`
          // would count it again.
          known = taken;
        }
        further_work const more = further(line, n);
        start_from(side, line, n, end_of_taken(more));
      }
    }
  }

 private:
  [[nodiscard]] static std::size_t index(std::int64_t i) noexcept {
    return static_cast<std::size_t>(i);
  }
  [[nodiscard]] static std::size_t index(pass_side side) noexcept {
    return static_cast<std::size_t>(side);
  }
  [[nodiscard]] std::size_t count() const noexcept { return index(microbatches_); }
  [[nodiscard]] std::size_t at(int line, int n) const noexcept {
    return index(line) * count() + index(n);
  }
  [[nodiscard]] std::size_t at(int line, int other, int n) const noexcept {
    return (index(line) * times_.lines() + index(other)) * count() + index(n);
  }

  [[nodiscard]] ticks end_of_taken(further_work const& more) const {
    if (more.time <= 0) return tree_.all().end;
    auto const split = std::lower_bound(sorted_.begin(), sorted_.end(), more.from);
    auto const [earlier, later] = tree_.split(index(split - sorted_.begin()));
    auto const rest = work_tree::part{more.time, more.from + more.time}.then(later);
    return earlier.then(rest).end;
  }

  // Passes of `other` that would have to start too late after a pass of `line` come before it.
  void compare(int line, int other) {
    int passes = 0;
    for (int n = 0; n < microbatches_; ++n) {
      auto const end = start(pass_side::front, line, n) + duration(pass_side::front, line, n);
      auto const starts_before = [&](int of_other) {
        auto const latest_end = -start(pass_side::back, other, microbatches_ - 1 - of_other);
        return latest_end - duration(pass_side::front, other, of_other) < end;
      };
      if (n > 0) passes = std::max(passes, before(pass_side::front, line, other, n - 1));
      while (passes < microbatches_ && starts_before(passes)) ++passes;
      put_before(line, other, n, passes);
    }
  }
  // What comes before the last pass of `other` that does comes before a pass of `line`, too.
  void follow(int line, int other) {
    for (int n = 0; n < microbatches_; ++n) {
      auto const passes = before(pass_side::front, line, other, n);
      if (passes == 0) continue;
      for (int third = 0; third < lines(); ++third) {
        auto const of_third = before(pass_side::front, other, third, passes - 1);
        if (of_third > before(pass_side::front, line, third, n))
          put_before(line, third, n, of_third);
      }
    }
  }
  // The same order, counted from the back.
  void mirror(int line, int other) {
    int n = 0;
    for (int passes = 0; passes < microbatches_; ++passes) {
      while (n < microbatches_ && before(pass_side::front, line, other, n) <= passes) ++n;
      before_[1][at(other, line, microbatches_ - 1 - passes)] = microbatches_ - n;
    }
  }

  line_times times_;
  int microbatches_;
  std::vector<ticks> starts_[2];         // by side: by line and number
  std::vector<std::int32_t> before_[2];  // by side: by line, other line and number
  bool is_possible_ = true;
  bool is_changed_ = false;
  // Of start_after_work alone.
  work_tree tree_;
  std::vector<std::size_t> by_start_;
  std::vector<std::size_t> place_;  // of a pass among the starts
  std::vector<ticks> sorted_;       // starts
  std::vector<int> taken_;          // by line: passes that are in the tree
};

}  // namespace zbpp::detail
