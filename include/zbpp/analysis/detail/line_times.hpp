// SPDX-License-Identifier: Apache-2.0
//
// How long the passes of one rank take, in lines of one stage and kind each.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zbpp::detail {

/// Holds the times of the passes of each line, which are equal along a line or given one by one.
class line_times {
 public:
  /// @param distinct  passes of a line whose times are to be added; 1 where all take the same
  line_times(std::size_t lines, int distinct) : lines_(lines), step_(distinct > 1 ? lines : 0) {
    each_.reserve(lines * index(distinct));
    if (step_ > 0) sums_.assign(lines, 0);
  }

  /// Adds the time of the next pass: first of number 0 of all lines, then of number 1 and so on.
  void add(ticks time) {
    if (step_ > 0) sums_.push_back(sums_[each_.size()] + time);
    each_.push_back(time);
  }

  [[nodiscard]] std::size_t lines() const noexcept { return lines_; }
  [[nodiscard]] ticks of(std::size_t line, std::int64_t n) const noexcept {
    return each_[index(n) * step_ + line];
  }
  /// @return what the passes of a line take from number `from` to before number `to`
  [[nodiscard]] ticks sum(std::size_t line, std::int64_t from, std::int64_t to) const noexcept {
    if (to <= from) return 0;
    if (step_ == 0) return (to - from) * each_[line];
    return sums_[index(to) * step_ + line] - sums_[index(from) * step_ + line];
  }

 private:
  std::size_t lines_;
  std::size_t step_;  // from one number to the next; 0: all are equal
  std::vector<ticks> each_;
  std::vector<ticks> sums_;  // of those before each number
};

}  // namespace zbpp::detail
