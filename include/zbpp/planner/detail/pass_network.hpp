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
#include <zbpp/planner/detail/pipeline_state.hpp>

#include <algorithm>
#include <array>
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
      : problem_(problem), room_(std::move(room)), microbatches_(problem.microbatches()) {
    auto const classes = index(problem.stages()) * slots;
    classes_.resize(classes);
    auto const passes = classes * index(microbatches_);
    nodes_.resize(passes);
    for (std::size_t x = 0; x < passes; ++x)
      nodes_[x].of_class = static_cast<std::int32_t>(x / index(microbatches_));
    begin_.resize(index(problem.ranks()) + 1);
    next_.resize(index(problem.ranks()));
  }

  /// Takes a schedule that keeps the room and pairs no passes. The stages that run BW, or R, do so
  /// for all their microbatches.
  void load(schedule const& order) {
    row_.clear();
    std::fill(classes_.begin(), classes_.end(), pass_class{});
    for (int rank = 0; rank < order.ranks(); ++rank) {
      begin_[index(rank)] = static_cast<int>(row_.size());
      for (auto const& p : order.passes(rank)) {
        auto const c = p.stage * slots + slot_of(p.kind);
        classes_[index(c)] = {.rank = rank, .kind = p.kind};
        row_.push_back(c * microbatches_ + p.microbatch);
      }
    }
    begin_.back() = static_cast<int>(row_.size());
    held_.resize(row_.size());
    for (int s = 0; s < problem_.stages(); ++s) set_classes(s);
    place(0, row_);
    time_heads();
    time_tails();
  }

  /// @return the schedule
  [[nodiscard]] schedule order() const {
    rows<pass> passes;
    passes.reserve(index(ranks()), row_.size());
    for (int rank = 0; rank < ranks(); ++rank) {
      for (int i = begin(rank); i < end(rank); ++i) {
        auto const c = nodes_[index(at(i))].of_class;
        passes.push({classes_[index(c)].kind, c / slots, at(i) % microbatches_});
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

  /// Puts passes at a position and those after it; `time_heads` has to follow.
  void place(int first, std::span<std::int32_t const> passes) {
    for (auto const x : passes) {
      row_[index(first)] = x;
      nodes_[index(x)].position = first++;
    }
  }

  /// Tells all heads and the cost anew; `time_tails` has to follow before an estimate counts.
  /// @complexity O(passes)
  void time_heads() {
    sorted_.clear();
    for (auto& n : nodes_) n.head = never;
    for (int rank = ranks() - 1; rank >= 0; --rank) {
      next_[index(rank)] = begin(rank);
      ready_.push_back(rank);
    }
    while (!ready_.empty()) {
      auto const rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
    cost_ = 0;
    for (int rank = 0; rank < ranks(); ++rank) cost_ = std::max(cost_, span(rank));
  }
  /// Tells all tails anew.
  /// @complexity O(passes)
  void time_tails() {
    for (auto i = sorted_.rbegin(); i != sorted_.rend(); ++i) {
      auto const own = rank(*i);
      auto const behind = position(*i) + 1;
      auto const rest = behind < end(own) ? tail_with(at(behind)) : -head(at(begin(own)));
      nodes_[index(*i)].tail = longest_tail(*i, of(*i), rest);
    }
  }

 private:
  static constexpr int slots = 4;  // kinds of passes of a stage: F, R, B or BW, W

  // What the passes of one stage and kind have in common.
  struct pass_class {
    int rank = 0;
    pass_kind kind{};
    ticks time = 0;
    ticks hop = 0;          // of its input
    bytes needed = 0;       // while it runs, beyond what was held before
    bytes added = 0;        // to what is held after it
    int input = 0;          // how far away the pass is that makes its input; 0 for none
    int output = 0;         // and the one that waits for it
    bool receives = false;  // its input, from another rank
    bool sends = false;     // its output, to another rank
  };

  struct node {
    ticks head = 0;
    ticks tail = 0;
    std::int32_t position = 0;
    std::int32_t of_class = 0;
  };

  [[nodiscard]] static int slot_of(pass_kind kind) noexcept {
    switch (kind) {
      case pass_kind::forward: return 0;
      case pass_kind::recompute: return 1;
      case pass_kind::backward_weight: return 3;
      default: return 2;
    }
  }

  [[nodiscard]] pass_class const& of(int pass) const noexcept {
    return classes_[index(nodes_[index(pass)].of_class)];
  }
  [[nodiscard]] int output(int pass) const noexcept {
    auto const by = of(pass).output;
    return by == 0 ? none : pass + by;
  }
  // The time from the start of a pass to the end of what follows.
  [[nodiscard]] ticks tail_with(int pass) const noexcept {
    return of(pass).time + nodes_[index(pass)].tail;
  }

  // The tail of a pass, given that of its rank.
  [[nodiscard]] ticks longest_tail(int pass, pass_class const& p, ticks rest) const noexcept {
    if (!p.sends) return rest;
    auto const to = pass + p.output;
    return std::max(rest, of(to).hop + tail_with(to));
  }

  void set_classes(int s) {
    auto const stage = index(s) * slots;
    auto const& c = problem_.costs(s);
    bool const is_last = s + 1 == problem_.stages();
    bool const recomputes = classes_[stage + 1].kind == pass_kind::recompute;
    bool const fuses = classes_[stage + 2].kind == pass_kind::backward;
    for (std::size_t slot = 0; slot < slots; ++slot)
      classes_[stage + slot].time = c.of(classes_[stage + slot].kind);
    auto const kept = recomputes ? c.recompute_input : c.activation;
    auto& f = classes_[stage];
    f.needed = f.added = kept;
    f.input = s > 0 ? -slots * microbatches_ : 0;
    f.hop = s > 0 ? problem_.transfer_time(s - 1, s) : 0;
    f.output = is_last ? 2 * microbatches_ : slots * microbatches_;
    auto const& where = problem_.placement();
    auto const is_elsewhere = [&](int other) {
      return other >= 0 && other < problem_.stages() && where.rank_of(other) != where.rank_of(s);
    };
    f.receives = is_elsewhere(s - 1);
    f.sends = is_elsewhere(s + 1);
    auto& r = classes_[stage + 1];
    r.needed = r.added = c.activation - kept;
    auto& b = classes_[stage + 2];
    b.needed = fuses ? 0 : c.output_gradient;
    b.added = (fuses ? 0 : c.weight_gradient_input) - c.activation;
    b.input = is_last ? -2 * microbatches_ : slots * microbatches_;
    b.hop = is_last ? 0 : problem_.transfer_time(s + 1, s);
    b.output = s > 0 ? -slots * microbatches_ : 0;
    b.receives = is_elsewhere(s + 1);
    b.sends = is_elsewhere(s - 1);
    auto& w = classes_[stage + 3];
    w.added = -c.weight_gradient_input;
    w.input = -microbatches_;
  }

  // Times the passes of a rank until one lacks its input.
  void advance(int rank) {
    auto& i = next_[index(rank)];
    bool const is_first = i == begin(rank);
    ticks free = is_first ? 0 : done(at(i - 1));
    bytes held = is_first ? 0 : held_[index(i - 1)] + added(at(i - 1));
    for (; i < end(rank); ++i) {
      auto const x = at(i);
      auto const& p = of(x);
      if (p.receives) {
        auto const from = x + p.input;
        if (head(from) == never) return;
        free = std::max(free, done(from) + p.hop);
      }
      nodes_[index(x)].head = free;
      free += p.time;
      held_[index(i)] = held;
      held += p.added;
      sorted_.push_back(x);
      if (!p.sends) continue;
      auto const to = x + p.output;
      auto const other = of(to).rank;
      if (next_[index(other)] == position(to)) ready_.push_back(other);
    }
  }

  problem const& problem_;
  std::vector<bytes> room_;
  int microbatches_;
  std::vector<pass_class> classes_;
  std::vector<node> nodes_;           // of each pass
  std::vector<std::int32_t> row_;     // passes of all ranks, one rank after another
  std::vector<int> begin_;            // of each rank in `row_`
  std::vector<bytes> held_;           // before each position
  std::vector<int> next_;             // position of each rank that is not timed yet
  std::vector<int> ready_;            // ranks that may go on
  std::vector<std::int32_t> sorted_;  // passes, each behind those that it waits for
  std::vector<ticks> heads_;          // of an estimate
  ticks cost_ = 0;
};

}  // namespace zbpp::detail
