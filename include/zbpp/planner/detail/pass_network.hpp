// SPDX-License-Identifier: Apache-2.0
//
// A schedule as a network of passes: when each starts, how long what follows it takes, and what
// becomes of both where a few passes of one rank change places.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/pass_classes.hpp>
#include <zbpp/planner/detail/pass_nodes.hpp>
#include <zbpp/planner/detail/pass_turns.hpp>
#include <zbpp/planner/detail/pipeline_state.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Holds one order of all passes, each with its head, when it starts, and its tail, the time from
/// its end to the end of what follows. Head, time and tail of a pass add up to what the order costs
/// at least; passes where they are the cost are critical. Passes are numbered by stage, kind and
/// microbatch; a position is a place in the row of a rank.
class pass_network {
 public:
  static constexpr int none = -1;

  /// @param room  bytes that the passes of each rank may hold
  pass_network(problem const& problem, std::vector<bytes> room)
      : problem_(problem),
        room_(std::move(room)),
        microbatches_(problem.microbatches()),
        classes_(problem),
        nodes_(problem.stages() * slots * microbatches_, problem.ranks()),
        turns_(index(nodes_.passes())) {
    begin_.resize(index(problem.ranks()) + 1);
  }

  /// Takes a schedule that keeps the room and pairs no passes. The stages that run BW, or R, do so
  /// for all their microbatches.
  void load(schedule const& order) {
    row_.clear();
    classes_.read(order);
    for (int rank = 0; rank < order.ranks(); ++rank) {
      begin_[index(rank)] = static_cast<int>(row_.size());
      for (auto const& p : order.passes(rank))
        row_.push_back(pass_classes::of(p) * microbatches_ + p.microbatch);
    }
    begin_.back() = static_cast<int>(row_.size());
    held_.resize(row_.size());
    nodes_.make(classes_, microbatches_);
    place(0, row_);
    turns_.load(row_);
    sort(0, turns_.size());
    time_all();
    turns_.sort_by([this](int pass) { return head(pass); });
  }

  /// @return the schedule
  [[nodiscard]] schedule order() const {
    rows<pass> passes;
    passes.reserve(index(ranks()), row_.size());
    for (int rank = 0; rank < ranks(); ++rank) {
      for (int i = begin(rank); i < end(rank); ++i) {
        auto const c = nodes_[at(i)].of_class;
        passes.push({classes_[c].kind, c / slots, at(i) % microbatches_});
      }
      passes.end_row();
    }
    return {problem_.placement(), microbatches_, std::move(passes)};
  }

  [[nodiscard]] int ranks() const noexcept { return problem_.ranks(); }
  /// @return how many numbers of passes there are
  [[nodiscard]] std::size_t passes() const noexcept { return index(nodes_.passes()); }
  /// @return the passes of all ranks, one row after another
  [[nodiscard]] std::vector<std::int32_t> const& row() const noexcept { return row_; }
  /// @return the positions of a rank: from `begin` to `end` - 1
  [[nodiscard]] int begin(int rank) const noexcept { return begin_[index(rank)]; }
  [[nodiscard]] int end(int rank) const noexcept { return begin_[index(rank) + 1]; }
  [[nodiscard]] int at(int position) const noexcept { return row_[index(position)]; }
  [[nodiscard]] int position(int pass) const noexcept { return nodes_[pass].position; }
  [[nodiscard]] int rank(int pass) const noexcept { return of(pass).rank; }
  [[nodiscard]] bool is_weight(int pass) const noexcept {
    return of(pass).kind == pass_kind::backward_weight;
  }
  /// @return the pass whose output a pass waits for; `none` where there is none
  [[nodiscard]] int input(int pass) const noexcept {
    auto const by = of(pass).input;
    return by == 0 ? none : pass + by;
  }
  [[nodiscard]] ticks head(int pass) const noexcept { return nodes_[pass].head; }
  [[nodiscard]] ticks tail(int pass) const noexcept { return nodes_[pass].tail; }
  /// @return when a pass ends
  [[nodiscard]] ticks done(int pass) const noexcept { return nodes_.done(pass); }
  /// @return when the input of a pass is there that another rank makes; 0 where none does
  [[nodiscard]] ticks arrival(int pass) const noexcept {
    auto const& n = nodes_[pass];
    return n.input == nodes_.nowhere() ? 0 : nodes_.arrival(n);
  }
  /// @return the time from the first to the last pass of a rank
  [[nodiscard]] ticks span(int rank) const noexcept {
    return done(at(end(rank) - 1)) - head(at(begin(rank)));
  }
  /// @return the longest of these times
  [[nodiscard]] ticks cost() const noexcept { return cost_; }

  /// @return by how many bytes a pass lacks room at a position before its own
  [[nodiscard]] bytes lack(int pass, int position) const noexcept {
    return held_[index(position)] + of(pass).needed - room_[index(rank(pass))];
  }
  /// @return what a pass adds to what its rank holds
  [[nodiscard]] bytes added(int pass) const noexcept { return of(pass).added; }

  /// Tells whether a pass may run before another that stands before it on its rank. Where the input
  /// of the one is there before what the other makes is used, no chain of passes leads from the
  /// other to the one, so the order stays free of cycles.
  /// @source E. Balas and A. Vazacopoulos, "Guided local search with shifting bottleneck for job
  ///         shop scheduling", Management Science 44(2), 1998, propositions 2.2 and 2.3
  [[nodiscard]] bool may_go_before(int pass, int other) const noexcept {
    auto const c = nodes_[pass].of_class;
    auto const d = nodes_[other].of_class;
    if (c == d || (c / slots == d / slots && pass - other == (c - d) * microbatches_)) return false;
    auto const from = input(pass);
    auto const to = output(other);
    return from != other && (from == none || to == none || done(from) < done(to));
  }

  /// Tells the length of the longest way through passes of a rank that change places; what changes
  /// elsewhere is left out.
  /// @param first  position of the first of them
  /// @param passes  in their new order
  /// @param limit  gives up as soon as it is longer
  /// @return `never` where it gave up, or where the rank lacks memory
  [[nodiscard]] ticks estimate(int first, std::span<std::int32_t const> passes, ticks limit) {
    auto const last = first + static_cast<int>(passes.size());
    auto const own = rank(passes.front());
    ticks free = done(nodes_[at(first)].before);
    bytes held = held_[index(first)];
    heads_.clear();
    for (auto const x : passes) {
      auto const& p = of(x);
      if (held + p.needed > room_[index(own)]) return never;
      held += p.added;
      auto const& n = nodes_[x];
      free = std::max(free, nodes_.arrival(n));
      heads_.push_back(free);
      free += n.time;
    }
    ticks most = 0;
    auto rest = nodes_.tail_with(nodes_[at(last - 1)].behind);
    for (auto i = passes.size(); i-- > 0;) {
      auto const& n = nodes_[passes[i]];
      rest = std::max(rest, nodes_.behind_output(n)) + n.time;
      most = std::max(most, heads_[i] + rest);
      if (most > limit) return never;
    }
    return most;
  }

  /// Puts passes of one rank in a new order, which must not make a cycle, and computes the heads
  /// and the cost; `time_tails` has to follow before an estimate counts.
  /// @param first  position of the first of them
  /// @param passes  in their new order
  /// @complexity O(ranks + passes with turns from the first to the last whose head changes)
  void move(int first, std::span<std::int32_t const> passes) {
    auto const own = rank(passes.front());
    auto const last = first + static_cast<int>(passes.size());
    auto const from = turns_.of(at(first));
    auto const to = turns_.of(at(last - 1)) + 1;
    place(first, passes);
    sort(index(from), index(to));
    int until = 0;
    for (int i = first; i < std::min(last + 1, end(own)); ++i)
      until = std::max(until, turns_.of(at(i)));
    for (int i = std::max(first - 1, begin(own)); i < last; ++i) tails_stale_.push_back(at(i));
    if (first == begin(own)) set_start(at(first));
    for (int i = from; i <= until; ++i) {
      ++timed_;
      auto& n = nodes_[turns_[index(i)]];
      auto const starts = nodes_.earliest(n);
      if (starts == n.head) continue;
      n.head = starts;
      for (auto const x : {n.behind, n.output})
        if (nodes_.is_pass(x)) until = std::max(until, turns_.of(x));
      if (n.before == nodes_.start()) set_start(turns_[index(i)]);
    }
    set_cost();
  }

  /// Computes the tails that the moves so far changed.
  /// @complexity as of `move`
  void time_tails() {
    int until = nodes_.passes();
    int from = -1;
    for (auto const x : tails_stale_) {
      until = std::min(until, turns_.of(x));
      from = std::max(from, turns_.of(x));
    }
    tails_stale_.clear();
    for (int i = from; i >= until; --i) {
      ++timed_;
      auto& n = nodes_[turns_[index(i)]];
      auto const rest = nodes_.longest_tail(n);
      if (rest == n.tail) continue;
      n.tail = rest;
      for (auto const x : {n.before, n.input})
        if (nodes_.is_pass(x)) until = std::min(until, turns_.of(x));
    }
  }

  /// Holds an order to go back to.
  struct kept_order {
    std::vector<std::int32_t> row;
    std::vector<std::int32_t> turns;
  };
  /// Copies the order.
  void keep(kept_order& to) const {
    to.row = row_;
    to.turns = turns_.sorted();
  }
  /// Goes back to an order of the schedule that was loaded last.
  /// @complexity O(passes)
  void go_back(kept_order const& to) {
    place(0, to.row);
    turns_.go_back(to.turns);
    time_all();
  }
  /// @return how many passes all functions have looked at so far, each time it was looked at
  [[nodiscard]] std::int64_t timed() const noexcept { return timed_; }

 private:
  static constexpr int slots = pass_classes::slots;

  // What follows the last pass of a rank is less by the head of its first: the cost is the time
  // from the one to the other.
  void set_start(int first) {
    auto const own = rank(first);
    nodes_[nodes_.end_of(own)].tail = -head(first);
    tails_stale_.push_back(at(end(own) - 1));
  }

  [[nodiscard]] pass_class const& of(int pass) const noexcept {
    return classes_[nodes_[pass].of_class];
  }
  [[nodiscard]] int output(int pass) const noexcept {
    auto const by = of(pass).output;
    return by == 0 ? none : pass + by;
  }

  void place(int first, std::span<std::int32_t const> passes) {
    auto const last = first + static_cast<int>(passes.size());
    std::copy(passes.begin(), passes.end(), row_.begin() + first);
    for (int i = first; i < last; ++i) {
      auto const own = rank(at(i));
      bool const is_first = i == begin(own);
      auto& n = nodes_[at(i)];
      n.position = i;
      n.before = is_first ? nodes_.start() : at(i - 1);
      n.behind = i + 1 < end(own) ? at(i + 1) : nodes_.end_of(own);
      held_[index(i)] = is_first ? 0 : held_[index(i - 1)] + added(at(i - 1));
    }
    if (first > begin(rank(at(first)))) nodes_[at(first - 1)].behind = at(first);
    if (last < end(rank(at(last - 1)))) nodes_[at(last)].before = at(last - 1);
  }

  void sort(std::size_t from, std::size_t to) {
    turns_.sort(from, to, [this](int pass, auto const& is_due) {
      auto const& p = of(pass);
      auto const here = position(pass);
      if (here > begin(p.rank) && is_due(at(here - 1))) return at(here - 1);
      return p.receives && is_due(pass + p.input) ? pass + p.input : none;
    });
    timed_ += static_cast<std::int64_t>(to - from);
  }

  // Computes all heads, tails and the cost anew.
  void time_all() {
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      auto& n = nodes_[turns_[i]];
      n.head = nodes_.earliest(n);
    }
    for (int rank = 0; rank < ranks(); ++rank) set_start(at(begin(rank)));
    set_cost();
    for (auto i = turns_.size(); i-- > 0;) {
      auto& n = nodes_[turns_[i]];
      n.tail = nodes_.longest_tail(n);
    }
    tails_stale_.clear();
    timed_ += static_cast<std::int64_t>(2 * turns_.size());
  }
  void set_cost() {
    cost_ = 0;
    for (int rank = 0; rank < ranks(); ++rank) cost_ = std::max(cost_, span(rank));
  }

  problem const& problem_;
  std::vector<bytes> room_;
  int microbatches_;
  pass_classes classes_;
  pass_nodes nodes_;
  pass_turns turns_;
  std::vector<std::int32_t> row_;          // passes of all ranks, one rank after another
  std::vector<int> begin_;                 // of each rank in `row_`
  std::vector<bytes> held_;                // before each position
  std::vector<std::int32_t> tails_stale_;  // passes whose tails may have changed
  std::vector<ticks> heads_;               // of an estimate
  ticks cost_ = 0;
  std::int64_t timed_ = 0;
};

}  // namespace zbpp::detail
