// SPDX-License-Identifier: Apache-2.0
//
// How the rows of all ranks are walked at once, each as far as it gets.
#pragma once

#include <zbpp/model/containers.hpp>

#include <cstddef>
#include <vector>

namespace zbpp::detail {

/// Walks the rows of all ranks. A rank goes on until its row ends or it is blocked by what another
/// rank has yet to do; whoever does that wakes it. Linear while a step wakes one rank at most.
class rank_walk {
 public:
  explicit rank_walk(int ranks) : next_(index(ranks), 0), is_blocked_(next_.size(), false) {
    for (int rank = ranks - 1; rank >= 0; --rank) awake_.push_back(rank);
  }

  /// Runs until no rank can go on.
  /// @param advance  called with a rank and its position, which it moves on; returns whether the
  ///                 row has ended, and false when the rank is blocked
  template <class Advance>
  void run(Advance const& advance) {
    while (!awake_.empty()) {
      auto const rank = awake_.back();
      awake_.pop_back();
      is_blocked_[index(rank)] = !advance(rank, next_[index(rank)]);
    }
  }
  /// Lets a rank go on, if it is blocked.
  void wake(int rank) {
    if (!is_blocked_[index(rank)]) return;
    is_blocked_[index(rank)] = false;
    awake_.push_back(rank);
  }

  [[nodiscard]] bool is_blocked(int rank) const { return is_blocked_[index(rank)]; }
  [[nodiscard]] std::size_t position(int rank) const { return next_[index(rank)]; }

 private:
  std::vector<std::size_t> next_;
  std::vector<bool> is_blocked_;
  std::vector<int> awake_;
};

}  // namespace zbpp::detail
