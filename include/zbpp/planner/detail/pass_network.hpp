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
        nodes_(index(problem.stages() * slots) * index(microbatches_)),
        turns_(nodes_.size()) {
    for (std::size_t x = 0; x < nodes_.size(); ++x)
      nodes_[x].of_class = static_cast<std::int32_t>(x / index(microbatches_));
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
        auto const c = nodes_[index(at(i))].of_class;
        passes.push({classes_[c].kind, c / slots, at(i) % microbatches_});
      }
      passes.end_row();
    }
    return {problem_.placement(), microbatches_, std::move(passes)};
  }

  [[nodiscard]] int ranks() const noexcept { return problem_.ranks(); }
  /// @return how many numbers of passes there are
  [[nodiscard]] std::size_t passes() const noexcept { return nodes_.size(); }
  /// @return the passes of all ranks, one row after another
  [[nodiscard]] std::vector<std::int32_t> const& row() const noexcept { return row_; }
  /// @return the positions of a rank: from `begin` to `end` - 1
  [[nodiscard]] int begin(int rank) const noexcept { return begin_[index(rank)]; }
  [[nodiscard]] int end(int rank) const noexcept { return begin_[index(rank) + 1]; }
  [[nodiscard]] int at(int position) const noexcept { return row_[index(position)]; }
  [[nodiscard]] int position(int pass) const noexcept { return nodes_[index(pass)].position; }
  [[nodiscard]] int rank(int pass) const noexcept { return of(pass).rank; }
  [[nodiscard]] bool is_weight(int pass) const noexcept {
    return of(pass).kind == pass_kind::backward_weight;
  }
  /// @return the pass whose output a pass waits for; `none` where there is none
  [[nodiscard]] int input(int pass) const noexcept {
    auto const by = of(pass).input;
    return by == 0 ? none : pass + by;
  }
  [[nodiscard]] ticks head(int pass) const noexcept { return nodes_[index(pass)].head; }
  [[nodiscard]] ticks tail(int pass) const noexcept { return nodes_[index(pass)].tail; }
  /// @return when a pass ends
  [[nodiscard]] ticks done(int pass) const noexcept { return head(pass) + of(pass).time; }
  /// @return when the input of a pass is there that another rank makes; 0 where none does
  [[nodiscard]] ticks arrival(int pass) const noexcept {
    auto const& p = of(pass);
    return p.receives ? done(pass + p.input) + p.hop : 0;
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
    auto const c = nodes_[index(pass)].of_class;
    auto const d = nodes_[index(other)].of_class;
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
    ticks free = first > begin(own) ? done(at(first - 1)) : 0;
    bytes held = held_[index(first)];
    heads_.clear();
    for (auto const x : passes) {
      auto const& p = of(x);
      if (held + p.needed > room_[index(own)]) return never;
      held += p.added;
      if (p.receives) free = std::max(free, done(x + p.input) + p.hop);
      heads_.push_back(free);
      free += p.time;
    }
    ticks most = 0;
    auto rest = last < end(own) ? tail_with(at(last)) : -head(at(begin(own)));
    for (auto i = passes.size(); i-- > 0;) {
      auto const x = passes[i];
      auto const& p = of(x);
      rest = longest_tail(x, p, rest) + p.time;
      most = std::max(most, heads_[i] + rest);
      if (most > limit) return never;
    }
    return most;
  }

  /// Puts passes of one rank in a new order, which must not make a cycle, and computes the heads
  /// and the cost; `time_tails` has to follow before an estimate counts.
  /// @param first  position of the first of them
  /// @param passes  in their new order
  /// @complexity O(ranks + passes whose heads change, and those that start in that time)
  void move(int first, std::span<std::int32_t const> passes) {
    auto const own = rank(passes.front());
    auto const last = first + static_cast<int>(passes.size());
    auto const from = index(turns_.of(at(first)));
    auto const to = index(turns_.of(at(last - 1))) + 1;
    place(first, passes);
    sort(from, to);
    int stale = 0;
    auto const mark = [&](int pass) { stale += std::exchange(is_head_stale(pass), true) ? 0 : 1; };
    for (int i = first; i < std::min(last + 1, end(own)); ++i) mark(at(i));
    for (int i = std::max(first - 1, begin(own)); i < last; ++i) make_tail_stale(at(i));
    if (first == begin(own)) make_tail_stale(at(end(own) - 1));
    for (auto i = from; stale > 0; ++i) {
      auto const x = turns_[i];
      ++timed_;
      if (!std::exchange(is_head_stale(x), false)) continue;
      --stale;
      auto const& p = of(x);
      auto const starts = earliest(x, p);
      if (starts == head(x)) continue;
      nodes_[index(x)].head = starts;
      auto const here = position(x);
      if (here == begin(p.rank)) make_tail_stale(at(end(p.rank) - 1));
      if (here + 1 < end(p.rank)) mark(at(here + 1));
      if (p.sends) mark(x + p.output);
    }
    set_cost();
  }

  /// Computes the tails that the moves so far changed.
  /// @complexity as of `move`
  void time_tails() {
    int from = 0;
    for (auto const x : tails_stale_) from = std::max(from, turns_.of(x));
    auto stale = static_cast<int>(tails_stale_.size());
    tails_stale_.clear();
    auto const mark = [&](int pass) { stale += std::exchange(is_tail_stale(pass), true) ? 0 : 1; };
    for (auto i = index(from) + 1; stale > 0;) {
      auto const x = turns_[--i];
      ++timed_;
      if (!std::exchange(is_tail_stale(x), false)) continue;
      --stale;
      auto const& p = of(x);
      auto const rest = longest_tail(x, p, rest_behind(x));
      if (rest == tail(x)) continue;
      nodes_[index(x)].tail = rest;
      if (position(x) > begin(p.rank)) mark(at(position(x) - 1));
      if (p.receives) mark(x + p.input);
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

  struct node {
    ticks head = 0;
    ticks tail = 0;
    std::int32_t position = 0;
    std::int32_t of_class = 0;
    bool is_head_stale = false;
    bool is_tail_stale = false;
  };

  [[nodiscard]] pass_class const& of(int pass) const noexcept {
    return classes_[nodes_[index(pass)].of_class];
  }
  [[nodiscard]] int output(int pass) const noexcept {
    auto const by = of(pass).output;
    return by == 0 ? none : pass + by;
  }
  // The time from the start of a pass to the end of what follows.
  [[nodiscard]] ticks tail_with(int pass) const noexcept { return of(pass).time + tail(pass); }

  // The tail of a pass, given that of its rank.
  [[nodiscard]] ticks longest_tail(int pass, pass_class const& p, ticks rest) const noexcept {
    if (!p.sends) return rest;
    auto const to = pass + p.output;
    return std::max(rest, of(to).hop + tail_with(to));
  }

  void place(int first, std::span<std::int32_t const> passes) {
    for (auto i = first; auto const x : passes) {
      row_[index(i)] = x;
      nodes_[index(x)].position = i++;
    }
    auto const last = first + static_cast<int>(passes.size());
    for (int i = first; i < last; ++i) {
      auto const x = at(i);
      bool const is_first = i == begin(rank(x));
      held_[index(i)] = is_first ? 0 : held_[index(i - 1)] + added(at(i - 1));
    }
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
      auto const x = turns_[i];
      nodes_[index(x)].head = earliest(x, of(x));
    }
    set_cost();
    for (auto i = turns_.size(); i-- > 0;) {
      auto const x = turns_[i];
      nodes_[index(x)].tail = longest_tail(x, of(x), rest_behind(x));
    }
    for (auto const x : tails_stale_) is_tail_stale(x) = false;
    tails_stale_.clear();
    timed_ += static_cast<std::int64_t>(2 * turns_.size());
  }
  // The head of a pass, given those that it waits for.
  [[nodiscard]] ticks earliest(int pass, pass_class const& p) const noexcept {
    auto const here = position(pass);
    auto const free = here > begin(p.rank) ? done(at(here - 1)) : 0;
    return p.receives ? std::max(free, done(pass + p.input) + p.hop) : free;
  }
  // What follows a pass on its rank.
  [[nodiscard]] ticks rest_behind(int pass) const noexcept {
    auto const own = rank(pass);
    auto const behind = position(pass) + 1;
    return behind < end(own) ? tail_with(at(behind)) : -head(at(begin(own)));
  }
  void set_cost() {
    cost_ = 0;
    for (int rank = 0; rank < ranks(); ++rank) cost_ = std::max(cost_, span(rank));
  }

  [[nodiscard]] bool& is_head_stale(int pass) noexcept { return nodes_[index(pass)].is_head_stale; }
  [[nodiscard]] bool& is_tail_stale(int pass) noexcept { return nodes_[index(pass)].is_tail_stale; }
  void make_tail_stale(int pass) {
    if (!std::exchange(is_tail_stale(pass), true)) tails_stale_.push_back(pass);
  }

  problem const& problem_;
  std::vector<bytes> room_;
  int microbatches_;
  pass_classes classes_;
  std::vector<node> nodes_;  // of each pass
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
