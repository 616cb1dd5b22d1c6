// SPDX-License-Identifier: Apache-2.0
//
// All passes in an order in which each comes behind those that it waits for, mended where a few
// passes change places.
#pragma once

#include <zbpp/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zbpp::detail {

/// Gives each pass a turn, later than the turns of the passes that it waits for.
class pass_turns {
 public:
  /// @param passes  how many numbers of passes there are
  explicit pass_turns(std::size_t passes) : turns_(passes) {}

  /// Takes passes in any order; `sort` has to follow.
  void load(std::vector<std::int32_t> const& passes) {
    sorted_ = passes;
    number();
  }

  [[nodiscard]] std::size_t size() const noexcept { return sorted_.size(); }
  [[nodiscard]] std::int32_t operator[](std::size_t turn) const noexcept { return sorted_[turn]; }
  [[nodiscard]] int of(int pass) const noexcept { return turns_[index(pass)]; }

  /// Puts the passes of some turns behind those that they wait for. Leaves the order as it is where
  /// that is so.
  /// @param waits_for  waits_for(pass, is_due) returns a pass that one waits for and that
  ///                   `is_due(pass)` is true of; -1 where there is none
  template <class Waits_for>
  void sort(std::size_t from, std::size_t to, Waits_for const& waits_for) {
    due_.assign(place_of(from), place_of(to));
    for (auto const x : due_) turns_[index(x)] = none;
    auto const is_due = [this](int pass) { return of(pass) == none; };
    for (auto const x : due_) {
      waiting_.push_back(x);
      while (!waiting_.empty()) {
        auto const next = waiting_.back();
        auto const before = waits_for(next, is_due);
        if (before != none) {
          waiting_.push_back(before);
          continue;
        }
        waiting_.pop_back();
        if (!is_due(next)) continue;
        turns_[index(next)] = static_cast<std::int32_t>(from);
        sorted_[from++] = next;
      }
    }
  }

  /// Sorts passes by when they start, which no pass does before those that it waits for. So passes
  /// that run at about the same time are close to each other, and a change concerns few.
  /// @param head  of a pass
  template <class Head>
  void sort_by(Head const& head) {
    std::stable_sort(
        sorted_.begin(), sorted_.end(), [&](int x, int y) { return head(x) < head(y); });
    number();
  }

  /// @return all passes in their turns
  [[nodiscard]] std::vector<std::int32_t> const& sorted() const noexcept { return sorted_; }
  /// Goes back to turns that were copied.
  void go_back(std::vector<std::int32_t> const& sorted) {
    sorted_ = sorted;
    number();
  }

 private:
  static constexpr std::int32_t none = -1;

  [[nodiscard]] std::vector<std::int32_t>::iterator place_of(std::size_t turn) {
    return sorted_.begin() + static_cast<std::ptrdiff_t>(turn);
  }
  void number() {
    for (std::int32_t i = 0; auto const x : sorted_) turns_[index(x)] = i++;
  }

  std::vector<std::int32_t> sorted_;   // passes
  std::vector<std::int32_t> turns_;    // of each pass
  std::vector<std::int32_t> due_;      // passes whose turn is not known yet
  std::vector<std::int32_t> waiting_;  // each for the one behind it
};

}  // namespace zbpp::detail
