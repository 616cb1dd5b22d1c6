// SPDX-License-Identifier: Apache-2.0
//
// Changes an order where that can shorten it: passes that are in a row on a critical path leave the
// row, and the memory that they need moves along.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/pass_network.hpp>
#include <zbpp/planner/detail/pipeline_state.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Searches the orders around one schedule, in rounds. The cost is the longest path through passes
/// and messages. Where a path runs through a row of passes without a pause on one rank, it only
/// becomes shorter where one of them goes before the first or behind the last of its row. Each step
/// looks at a third of such changes, drawn at random, of passes that are near that end of the row,
/// and makes the one whose estimate is least, be it longer than before; a pass that was moved stays
/// for some steps. Where that leads nowhere, the next round begins with the best order of this one,
/// or again as this one if that costs much more than the best of all, and moves some passes at
/// random, most often where a critical path goes from rank to rank. Some rounds begin at the best
/// of all, and their steps look at all changes.
/// @source the moves are those of E. Balas and A. Vazacopoulos, Management Science 44(2), 1998, the
///         steps those of E. Nowicki and C. Smutnicki, "A fast taboo search algorithm for the job
///         shop problem", Management Science 42(6), 1996, and where rounds begin is by G. Dueck,
///         "New optimization heuristics: the great deluge algorithm and the record-to-record
///         travel", J. Comput. Phys. 104, 1993; W that make room are ours
class order_search {
 public:
  /// @param room  bytes that the passes of each rank may hold
  order_search(problem const& problem, std::vector<bytes> room, std::uint64_t seed)
      : network_(problem, std::move(room)), random_(seed) {}

  /// Goes on from a schedule that keeps the room and pairs no passes.
  void start(schedule const& order) {
    network_.load(order);
    cost_ = cost_of_round_ = network_.cost();
    for (auto* kept : {&best_, &best_of_round_, &begin_}) network_.keep(*kept);
    free_.assign(network_.passes(), 0);
    since_ = steps_;
  }

  /// Makes one change of the order, or begins a round.
  void step() {
    ++steps_;
    look();
    if (best_change_.estimate == never) {
      // As the first step of a round, or behind a gain, this counts as a change: where nothing can
      // change, a round has no other step.
      if (steps_ - since_ == 1) work_ += overhead;
      return begin_round();
    }
    apply();
    network_.time_tails();
    count_timed();
    keep_if_better();
    if (steps_ - since_ > patience) begin_round();
  }

  /// @return the cost of the best order; `never` before the start
  [[nodiscard]] ticks cost() const noexcept { return cost_; }
  /// @return the best order; there must be one
  [[nodiscard]] schedule best() {
    network_.go_back(best_);
    return network_.order();
  }
  /// @return what the steps took so far, as passes that a list scheduler places in the same time
  [[nodiscard]] double work() const noexcept { return work_; }

 private:
  // Chosen by us, by trying some on the problems of docs/benchmarks.md.
  static constexpr int patience = 60;        // steps without gain, in a round
  static constexpr int moves_anywhere = 20;  // at random, as a round begins
  static constexpr int moves_near_path = 8;
  static constexpr ticks most_worse = 100;    // part of the best cost by which a round begins above
  static constexpr int choices = 3;           // of so many changes, a step looks at one
  static constexpr int period = 8;            // rounds, one of which looks at all
  static constexpr int least_rest = 10;       // steps that a moved pass stays
  static constexpr int reach = 8;             // of a move
  static constexpr int farthest_weight = 12;  // from an F for which it makes room

  struct change {
    ticks estimate = never;
    int first = 0;  // position
    int moved = 0;  // the pass
    std::vector<std::int32_t> passes;
  };

  [[nodiscard]] int below(int end) {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(end));
  }

  void keep_if_better() {
    auto const its = network_.cost();
    if (its > cost_of_round_) return;
    if (its < cost_of_round_) since_ = steps_;
    cost_of_round_ = its;
    network_.keep(best_of_round_);
    if (its > cost_) return;
    cost_ = its;
    network_.keep(best_);
  }

  // Finds the best of some changes of the rows on a critical path.
  void look() {
    best_change_.estimate = never;
    for (auto last = end_of_path(); last != pass_network::none;) {
      auto const end = network_.position(last);
      auto first = end;
      last = start_of_row(first);
      auto const far = looks_at_all_ ? end - first : std::min(reach, end - first);
      for (int i = first + 1; i <= first + far; ++i)
        if (below(choices) == 0 || looks_at_all_) try_before(i, first);
      for (int i = end - far; i < end; ++i)
        if (below(choices) == 0 || looks_at_all_) try_behind(i, end);
    }
  }

  // The last pass of a rank that takes as long as the whole order.
  [[nodiscard]] int end_of_path() {
    int last = pass_network::none;
    int found = 0;
    for (int rank = 0; rank < network_.ranks(); ++rank)
      if (network_.span(rank) == network_.cost() && below(++found) == 0)
        last = network_.at(network_.end(rank) - 1);
    return last;
  }

  // Goes from a position to the first of its row on the path.
  // @return the pass whose output that one waits for; `none` where the path begins
  [[nodiscard]] int start_of_row(int& position) {
    for (;; --position) {
      auto const pass = network_.at(position);
      auto const rank = network_.rank(pass);
      bool const waits_for_rank = position > network_.begin(rank) &&
                                  network_.done(network_.at(position - 1)) == network_.head(pass);
      bool const waits_for_input = network_.arrival(pass) == network_.head(pass);
      if (waits_for_input && (!waits_for_rank || below(2) == 0)) return network_.input(pass);
      if (!waits_for_rank) return pass_network::none;
    }
  }

  // A pass goes forward as far as a position, or as it may. Where it lacks memory there, the next W
  // go with it.
  void try_before(int from, int to) {
    auto const pass = network_.at(from);
    int first = from;
    while (first > to && network_.may_go_before(pass, network_.at(first - 1))) --first;
    if (first == from) return;
    changed_.clear();
    auto end = from + 1;
    auto lack = network_.lack(pass, first);
    if (lack > 0) {
      auto const most = std::min(network_.end(network_.rank(pass)), from + farthest_weight);
      for (int i = first; i < most && lack > 0; ++i) {
        auto const weight = network_.at(i);
        if (!network_.is_weight(weight) || i == from ||
            network_.position(network_.input(weight)) >= first)
          continue;
        changed_.push_back(weight);
        lack += network_.added(weight);
        end = std::max(end, i + 1);
      }
      if (lack > 0) return;
    }
    changed_.push_back(pass);
    auto const moved = changed_.size();
    for (int i = first; i < end; ++i) {
      auto const at = changed_.begin() + static_cast<std::ptrdiff_t>(moved);
      if (std::find(changed_.begin(), at, network_.at(i)) == at) changed_.push_back(network_.at(i));
    }
    consider(first, pass);
  }

  // A pass goes back as far as a position, or as it may and the others have room without it.
  void try_behind(int from, int to) {
    auto const pass = network_.at(from);
    changed_.clear();
    for (int i = from + 1; i <= to; ++i) {
      auto const other = network_.at(i);
      if (!network_.may_go_before(other, pass) || network_.lack(other, i) > network_.added(pass))
        break;
      changed_.push_back(other);
    }
    if (changed_.empty()) return;
    changed_.push_back(pass);
    consider(from, pass);
  }

  void consider(int first, int pass) {
    auto const estimate = network_.estimate(first, changed_, best_change_.estimate);
    work_ += work_of_estimate * static_cast<double>(changed_.size());
    if (estimate == never) return;
    if (free_[index(pass)] > steps_ && estimate >= cost_) return;
    ties_ = estimate == best_change_.estimate ? ties_ + 1 : 1;
    if (below(ties_) != 0) return;
    best_change_.estimate = estimate;
    best_change_.first = first;
    best_change_.moved = pass;
    std::swap(best_change_.passes, changed_);
  }

  void apply() {
    network_.move(best_change_.first, best_change_.passes);
    work_ += overhead;
    free_[index(best_change_.moved)] = steps_ + least_rest + below(least_rest);
  }

  void begin_round() {
    if (cost_of_round_ != never && cost_of_round_ <= cost_ + cost_ / most_worse)
      std::swap(begin_, best_of_round_);
    looks_at_all_ = ++rounds_ % period == 0;
    if (looks_at_all_) begin_ = best_;
    network_.go_back(begin_);
    cost_of_round_ = never;
    since_ = steps_;
    move_at_random();
    network_.time_tails();
    count_timed();
  }

  // Moves some passes. In three of four rounds they are near the places where a critical path goes
  // from one rank to another: what a rank runs without a pause takes as long in any order.
  void move_at_random() {
    find_crossings();
    bool const near_path = !crossings_.empty() && below(4) > 0;
    for (int n = near_path ? moves_near_path : moves_anywhere; n > 0; --n) {
      auto const at = near_path ? near_crossing() : anywhere();
      auto const rank = network_.rank(network_.at(at));
      best_change_.estimate = never;
      if (below(2) == 0)
        try_before(at, std::max(network_.begin(rank), at - 1 - below(reach)));
      else
        try_behind(at, std::min(network_.end(rank) - 1, at + 1 + below(reach)));
      if (best_change_.estimate != never) apply();
    }
  }
  [[nodiscard]] int anywhere() {
    auto const rank = below(network_.ranks());
    return network_.begin(rank) + below(network_.end(rank) - network_.begin(rank));
  }
  [[nodiscard]] int near_crossing() {
    auto const crossing = crossings_[index(below(static_cast<int>(crossings_.size())))];
    auto const rank = network_.rank(network_.at(crossing));
    auto const at = crossing + below(2 * reach + 1) - reach;
    return std::clamp(at, network_.begin(rank), network_.end(rank) - 1);
  }
  // Finds the positions of the passes on a critical path that send to another or receive from it.
  void find_crossings() {
    crossings_.clear();
    for (auto last = end_of_path();;) {
      auto first = network_.position(last);
      last = start_of_row(first);
      if (last == pass_network::none) return;
      crossings_.push_back(first);
      crossings_.push_back(network_.position(last));
    }
  }

  void count_timed() {
    auto const timed = network_.timed();
    work_ += work_of_timed * static_cast<double>(timed - std::exchange(timed_, timed));
  }

  // Passes that a list scheduler places in the time of a change, and of each pass that it times or
  // that an estimate looks at.
  static constexpr double overhead = 75;
  static constexpr double work_of_timed = 0.09;
  static constexpr double work_of_estimate = 0.18;

  pass_network network_;
  std::mt19937_64 random_;
  std::vector<std::int64_t> free_;  // step from which on a pass may move again
  std::vector<std::int32_t> changed_;
  std::vector<int> crossings_;  // positions
  change best_change_;
  pass_network::kept_order best_;
  pass_network::kept_order best_of_round_;
  pass_network::kept_order begin_;  // of the round
  ticks cost_ = never;              // of the best
  ticks cost_of_round_ = never;     // of its best
  std::int64_t rounds_ = 0;
  bool looks_at_all_ = false;  // the round
  std::int64_t steps_ = 0;
  std::int64_t since_ = 0;  // step of the round's last gain
  int ties_ = 0;
  std::int64_t timed_ = 0;  // of the network, when it was counted last
  double work_ = 0;
};

}  // namespace zbpp::detail
