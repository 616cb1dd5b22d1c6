// SPDX-License-Identifier: Apache-2.0
//
// Local search on the network of passes: changes the order of single passes along the critical
// paths, on the heads and tails that the network keeps.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/list_scheduler.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

// ---- classes of passes -------------------------------------------------------------------------
//
// What the passes of one stage and kind have in common, for a network of passes: times, memory, and
// where the passes are that they wait for and that wait for them.

/// Holds what the passes of one stage and kind have in common.
struct pass_class {
  int rank = 0;
  pass_kind kind{};
  ticks time = 0;         ///< where microbatches take the same
  ticks hop = 0;          ///< of its input, likewise
  bytes needed = 0;       ///< while it runs, beyond what was held before
  bytes added = 0;        ///< to what is held after it
  int input = 0;          ///< how far away the pass is that makes its input; 0 for none
  int output = 0;         ///< and the one that waits for it
  bool receives = false;  ///< its input, from another rank
  bool sends = false;     ///< its output, to another rank
};

/// Holds the classes of all passes of a schedule, by stage and kind. A pass is numbered by its
/// class times the microbatches, plus its microbatch.
class pass_classes {
 public:
  static constexpr int slots = 4;  ///< kinds of passes of a stage: F, R, B or BW, W

  explicit pass_classes(problem const& problem)
      : problem_(problem), classes_(index(problem.stages() * slots)) {}
  [[nodiscard]] static int of(pass const& p) noexcept { return p.stage * slots + slot_of(p.kind); }
  [[nodiscard]] static int stage_of(int number) noexcept { return number / slots; }
  [[nodiscard]] pass_class const& operator[](int number) const noexcept {
    return classes_[index(number)];
  }

  /// Takes the classes of a schedule. The stages that run BW, or R, do so for all microbatches.
  void read(schedule const& order) {
    std::fill(classes_.begin(), classes_.end(), pass_class{});
    for (int rank = 0; rank < order.ranks(); ++rank)
      for (auto const& p : order.passes(rank))
        classes_[index(of(p))] = {.rank = rank, .kind = p.kind};
    for (int s = 0; s < problem_.stages(); ++s) set(s);
  }

 private:
  [[nodiscard]] static int slot_of(pass_kind kind) noexcept {
    switch (kind) {
      case pass_kind::forward: return 0;
      case pass_kind::recompute: return 1;
      case pass_kind::backward_weight: return 3;
      default: return 2;
    }
  }

  void set(int s) {
    auto const microbatches = problem_.microbatches();
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
    f.input = s > 0 ? -slots * microbatches : 0;
    f.hop = s > 0 ? problem_.transfer_time(s - 1, s, 0) : 0;
    f.output = is_last ? 2 * microbatches : slots * microbatches;
    auto const& placement = problem_.placement();
    auto const is_elsewhere = [&](int other) {
      return other >= 0 && other < problem_.stages() &&
             placement.rank_of(other) != placement.rank_of(s);
    };
    f.receives = is_elsewhere(s - 1);
    f.sends = is_elsewhere(s + 1);
    auto& r = classes_[stage + 1];
    r.needed = r.added = c.activation - kept;
    auto& b = classes_[stage + 2];
    b.needed = fuses ? 0 : c.output_gradient;
    b.added = (fuses ? 0 : c.weight_gradient_input) - c.activation;
    b.input = is_last ? -2 * microbatches : slots * microbatches;
    b.hop = is_last ? 0 : problem_.transfer_time(s + 1, s, 0);
    b.output = s > 0 ? -slots * microbatches : 0;
    b.receives = is_elsewhere(s + 1);
    b.sends = is_elsewhere(s - 1);
    auto& w = classes_[stage + 3];
    w.added = -c.weight_gradient_input;
    w.input = -microbatches;
  }

  problem const& problem_;
  std::vector<pass_class> classes_;  // by stage and kind
};

// ---- passes ------------------------------------------------------------------------------------
//
// The passes of a network with what timing them needs: when each starts, how long what follows it
// takes, and which passes stand around it.

/// Holds a pass with all that timing it needs, on one cache line.
struct alignas(64) pass_node {
  ticks head = 0;  ///< its start
  ticks tail = 0;  ///< from its end to the end of what follows
  ticks time = 0;
  ticks hop = 0;            ///< of its input
  std::int32_t before = 0;  ///< on its rank
  std::int32_t behind = 0;  ///< on its rank
  std::int32_t input = 0;   ///< of another rank
  std::int32_t output = 0;  ///< to another rank
  std::int32_t position = 0;
  std::int32_t of_class = 0;
};

/// Holds the nodes of all passes. After them there are nodes that stand for what a pass lacks, so
/// that timing does not ask: the start of every rank, an input or output of no other rank, and the
/// end of each rank.
class pass_nodes {
 public:
  pass_nodes(int passes, int ranks) : passes_(passes), nodes_(index(passes + 2 + ranks)) {}

  /// Makes the nodes again; the caller says what stands before and after each.
  void make(pass_classes const& classes, problem const& problem) {
    auto const microbatches = problem.microbatches();
    bool const differ = problem.distinct_microbatches() > 1;
    for (int x = 0; x < passes_; ++x) {
      auto const of_class = x / microbatches;
      auto const& c = classes[of_class];
      (*this)[x] = {
          .time = c.time,
          .hop = c.hop,
          .input = c.receives ? x + c.input : nowhere(),
          .output = c.sends ? x + c.output : nowhere(),
          .of_class = of_class};
      if (differ)
        set_times((*this)[x], c, problem, {c.kind, classes.stage_of(of_class), x % microbatches});
    }
    constexpr ticks never_longest = -(ticks{1} << 60);
    (*this)[nowhere()] = {.head = never_longest, .tail = never_longest};
  }

  [[nodiscard]] pass_node& operator[](int x) noexcept { return nodes_[index(x)]; }
  [[nodiscard]] pass_node const& operator[](int x) const noexcept { return nodes_[index(x)]; }

  /// @return how many passes there are; their nodes are the first
  [[nodiscard]] int passes() const noexcept { return passes_; }
  [[nodiscard]] bool is_pass(int x) const noexcept { return x < passes_; }
  /// @return what stands before the first pass of every rank
  [[nodiscard]] int start() const noexcept { return passes_; }
  /// @return what stands for an input or output of no other rank
  [[nodiscard]] int nowhere() const noexcept { return passes_ + 1; }
  /// @return what stands after the last pass of a rank
  [[nodiscard]] int end_of(int rank) const noexcept { return passes_ + 2 + rank; }

  [[nodiscard]] ticks done(int x) const noexcept {
    auto const& n = (*this)[x];
    return n.head + n.time;
  }
  /// @return the time from the start of a pass to the end of what follows
  [[nodiscard]] ticks tail_with(int x) const noexcept {
    auto const& n = (*this)[x];
    return n.time + n.tail;
  }
  /// @return when the input of a pass is there that another rank makes
  [[nodiscard]] ticks arrival(pass_node const& n) const noexcept { return done(n.input) + n.hop; }
  /// @return the time from the end of a pass to the end of what follows its output
  [[nodiscard]] ticks behind_output(pass_node const& n) const noexcept {
    auto const& to = (*this)[n.output];
    return to.hop + to.time + to.tail;
  }
  /// @return the head of a pass, given those that it waits for
  [[nodiscard]] ticks earliest(pass_node const& n) const noexcept {
    return std::max(done(n.before), arrival(n));
  }
  /// @return the tail of a pass, given those that wait for it
  [[nodiscard]] ticks longest_tail(pass_node const& n) const noexcept {
    return std::max(tail_with(n.behind), behind_output(n));
  }

 private:
  // The times of a pass whose microbatch differs from others.
  static void set_times(
      pass_node& node, pass_class const& c, problem const& problem, pass const& p) {
    node.time = problem.time(p);
    if (c.receives)
      node.hop = problem.transfer_time(
          p.kind == pass_kind::forward ? p.stage - 1 : p.stage + 1, p.stage, p.microbatch);
  }

  int passes_;
  std::vector<pass_node> nodes_;
};

// ---- a topological order -----------------------------------------------------------------------
//
// All passes in an order in which each comes after those that it waits for, mended where a few
// passes change places.

/// Gives each pass a turn, later than the turns of the passes that it waits for.
class topological_order {
 public:
  /// @param passes  how many numbers of passes there are
  explicit topological_order(std::size_t passes) : turns_(passes) {}

  /// Takes passes in any order; `sort` has to follow.
  void load(std::vector<std::int32_t> const& passes) {
    sorted_ = passes;
    number();
  }

  [[nodiscard]] std::size_t size() const noexcept { return sorted_.size(); }
  [[nodiscard]] std::int32_t operator[](std::size_t turn) const noexcept { return sorted_[turn]; }
  [[nodiscard]] int of(int pass) const noexcept { return turns_[index(pass)]; }

  /// Puts the passes of some turns after those that they wait for. Leaves the order as it is where
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
  std::vector<std::int32_t> waiting_;  // each for the one after it
};

// ---- the network -------------------------------------------------------------------------------
//
// A schedule as a network of passes: when each starts, how long what follows it takes, and what
// becomes of both where a few passes of one rank change places.

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
    nodes_.make(classes_, problem_);
    place(0, row_);
    turns_.load(row_);
    sort(0, turns_.size());
    time_all();
    turns_.sort_by([this](int pass) { return head(pass); });
  }

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
  [[nodiscard]] std::size_t passes() const noexcept { return index(nodes_.passes()); }
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
  [[nodiscard]] int input(int pass) const noexcept {
    auto const by = of(pass).input;
    return by == 0 ? none : pass + by;
  }
  [[nodiscard]] ticks head(int pass) const noexcept { return nodes_[pass].head; }
  [[nodiscard]] ticks tail(int pass) const noexcept { return nodes_[pass].tail; }
  [[nodiscard]] ticks done(int pass) const noexcept { return nodes_.done(pass); }
  /// @return when the input of a pass is there that another rank makes; 0 where none does
  [[nodiscard]] ticks arrival(int pass) const noexcept {
    auto const& n = nodes_[pass];
    return n.input == nodes_.nowhere() ? 0 : nodes_.arrival(n);
  }
  [[nodiscard]] ticks span(int rank) const noexcept {
    return done(at(end(rank) - 1)) - head(at(begin(rank)));
  }
  /// @return the longest span of a rank
  [[nodiscard]] ticks cost() const noexcept { return cost_; }

  [[nodiscard]] bytes lack(int pass, int position) const noexcept {
    return held_[index(position)] + of(pass).needed - room_[index(rank(pass))];
  }
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
  /// Goes back to an order of the schedule that was loaded last. @complexity O(passes)
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

  // Computes all heads, tails and the cost again.
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
  topological_order turns_;
  std::vector<std::int32_t> row_;          // passes of all ranks, one rank after another
  std::vector<int> begin_;                 // of each rank in `row_`
  std::vector<bytes> held_;                // before each position
  std::vector<std::int32_t> tails_stale_;  // passes whose tails may have changed
  std::vector<ticks> heads_;               // of an estimate
  ticks cost_ = 0;
  std::int64_t timed_ = 0;
};

// ---- the search --------------------------------------------------------------------------------
//
// Changes an order where that can shorten it: passes that are in a row on a critical path leave the
// row, and the memory that they need moves along.

/// Searches the orders around one schedule, in rounds. The cost is the longest path through passes
/// and messages. Where a path runs through a row of passes without a pause on one rank, it only
/// becomes shorter where one of them goes before the first or after the last of its row. Each step
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
      // As the first step of a round, or after a gain, this counts as a change: where nothing can
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
    auto const found = network_.cost();
    if (found > cost_of_round_) return;
    if (found < cost_of_round_) since_ = steps_;
    cost_of_round_ = found;
    network_.keep(best_of_round_);
    if (found > cost_) return;
    cost_ = found;
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
