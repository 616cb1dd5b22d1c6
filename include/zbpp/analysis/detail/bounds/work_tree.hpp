// SPDX-License-Identifier: Apache-2.0
//
// When passes can have ended that one rank runs one after another, each from its earliest start on;
// passes are added one by one.
#pragma once

#include <zbpp/model/costs.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Holds passes in the order of their earliest starts.
/// @source P. Vilim, "O(n log n) filtering algorithms for unary resource constraint", CPAIOR 2004
class work_tree {
 public:
  /// States what passes take together, and when they can have ended.
  struct part {
    ticks work = 0;
    ticks end = never;

    [[nodiscard]] constexpr part then(part const& later) const noexcept {
      return {work + later.work, std::max(end == never ? never : end + later.work, later.end)};
    }
  };

  /// Removes all passes. @param most  places for passes
  void clear(std::size_t most) {
    leaves_ = std::bit_ceil(std::max<std::size_t>(most, 1));
    parts_.assign(2 * leaves_, part{});
  }
  /// Adds a pass. @param place  of its start among all starts
  /// @complexity O(log(places))
  void add(std::size_t place, ticks start, ticks duration) {
    auto at = leaves_ + place;
    parts_[at] = {duration, start + duration};
    while (at > 1) {
      at /= 2;
      parts_[at] = parts_[2 * at].then(parts_[2 * at + 1]);
    }
  }
  [[nodiscard]] part const& all() const noexcept { return parts_[1]; }
  /// @return the passes before a place, and those from there on
  [[nodiscard]] std::pair<part, part> split(std::size_t place) const {
    part before;
    part after;
    std::size_t at = 1;
    for (auto half = leaves_ / 2; half > 0; half /= 2) {
      at *= 2;
      if (place >= half) {
        before = before.then(parts_[at]);
        place -= half;
        ++at;
      } else {
        after = parts_[at + 1].then(after);
      }
    }
    (place > 0 ? before = before.then(parts_[at]) : after = parts_[at].then(after));
    return {before, after};
  }

 private:
  static constexpr ticks never = std::numeric_limits<ticks>::min();

  std::size_t leaves_ = 1;
  std::vector<part> parts_ = std::vector<part>(2);
};

}  // namespace zbpp::detail
