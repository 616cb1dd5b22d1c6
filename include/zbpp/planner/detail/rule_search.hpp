// SPDX-License-Identifier: Apache-2.0
//
// The search over rules of the list scheduler: styles to begin with, random changes of the best,
// and what they cost.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/list_scheduler.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/stage_work.hpp>
#include <zbpp/planner/detail/v_blocks.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

// ---- styles ------------------------------------------------------------------------------------
//
// Styles of rules for whole pipelines that are known to work in some regime.

/// Makes the same choices for all ranks; times are eighths of the mean F and W.
struct rule_style {
  int shape = 0;  ///< of the warm-up on one chunk per rank, or which chunk goes first on several
  bool unblock = true;
  int wait = 2;         ///< for a B that is due
  int first_wait = -1;  ///< for the first B; -1 for as long as for others
  int deep_wait = 0;    ///< for an F of a later stage that is due
  int overrun = 0;
  int forward_first = 0;  ///< on as many ranks; -1 for as many as have room beyond one per F
  int weights_kept = rank_rule::no_limit;  ///< -1 for as many as the rank's number
  int in_flight = 0;                       ///< of the first chunks; 0 for no limit
  int idle = -1;                           ///< eighths of what each rank may idle; -1 for any
  int recompute = 0;                       ///< 0 no stage, 1 all that can, 2 the first half
  int fuse = 0;                            ///< 0 no stage, 1 all that may, 2 half of them
};

/// Lists styles for linear placements, the likeliest first.
/// @source found by trying all styles on the profiles of the paper, as they are and with each time
///         changed by up to 1%, at nine memory limits, and on uneven ranks: the first alone meets
///         the lower bound in three of four cases
[[nodiscard]] inline std::vector<rule_style> linear_styles() {
  constexpr int by_rank = -1;
  constexpr int by_room = -1;
  return {
      {.wait = 1, .forward_first = 1, .idle = 8},
      {.shape = 4, .unblock = false, .wait = 1, .overrun = 1, .idle = 8},
      {.wait = 1, .overrun = 4, .forward_first = 1, .idle = 8},
      {.shape = 4, .wait = 2, .idle = 6},
      {.unblock = false, .wait = 0, .idle = 5},
      {.unblock = false, .wait = 0, .overrun = 8, .forward_first = 1},
      {.wait = 1, .overrun = 4, .forward_first = by_room},
      {.wait = 0, .forward_first = 1},
      {.wait = 4, .forward_first = by_room},
      {.shape = 4, .wait = 0, .overrun = 8, .forward_first = 1},
      {.shape = 5, .wait = 2, .overrun = 4, .forward_first = 1},
      {.wait = 4, .overrun = 4, .forward_first = by_room},
      {.wait = 8, .overrun = 8, .forward_first = 1, .weights_kept = by_rank},
      {.shape = 3, .wait = 0, .overrun = 4, .weights_kept = by_rank},
      {.wait = 1, .overrun = 8},
      {.shape = 2, .wait = 2},
      {.shape = 1, .wait = 2}};
}

/// Tells how many microbatches the first chunks of a looped placement have in flight where every
/// chunk takes memory in proportion to the way that is left to it: the first of c chunks has c
/// times the way of the last one.
/// @return 0 where memory does not limit that, and on other placements
/// @source ours: searches of looped problems within little memory make their largest steps with a
///         cap of the first chunks that is nearly always within two of this
[[nodiscard]] inline int share_of_first_chunks(problem const& problem) {
  auto const& placement = problem.placement();
  if (placement.is_linear() || !placement.is_looped()) return 0;
  bytes share = problem.microbatches();
  for (int r = 0; r < problem.ranks(); ++r) {
    auto const limit = problem.memory_limit(r);
    if (!limit) continue;
    auto const stages = placement.stages_of(r);
    auto weight = static_cast<bytes>(stages.size());
    bytes kept = 0;
    bytes room = *limit;
    for (int s : stages) {
      kept += weight-- * problem.costs(s).activation;
      room -= problem.fixed_memory(s);
    }
    if (kept > 0)
      share = std::min(
          share, (std::max<bytes>(0, room) * static_cast<bytes>(stages.size()) + kept / 2) / kept);
  }
  return share < problem.microbatches() ? static_cast<int>(share) : 0;
}

/// Lists styles for several chunks per rank, the likeliest first.
/// @param share  of the first chunks, as `share_of_first_chunks` has it
/// @param is_v   on a V, where building blocks lead and need the time
/// @source ours: most orders of looped problems that cost too much lose that time before rank 0
///         runs its first B, which waits for the first microbatch
[[nodiscard]] inline std::vector<rule_style> chunk_styles(int share, bool is_v) {
  auto const deep_waits = is_v ? std::vector{0} : std::vector{8, 0};
  std::vector<rule_style> styles;
  for (int deep_wait : deep_waits)
    for (int wait : {2, 0})
      for (bool unblock : {true, false})
        for (int shape = 0; shape < 4; ++shape)
          for (int idle : {8, -1})
            styles.push_back(
                {.shape = shape,
                 .unblock = unblock,
                 .wait = wait,
                 .deep_wait = deep_wait,
                 .idle = idle});
  if (share == 0) return styles;
  for (int deep_wait : deep_waits)
    for (int by : {0, 1, -1, 2, -2})
      for (int shape : {3, 1, 2, 0})
        if (share + by > 0)
          styles.push_back(
              {.shape = shape,
               .unblock = false,
               .wait = 0,
               .deep_wait = deep_wait,
               .in_flight = share + by});
  return styles;
}

// ---- candidates --------------------------------------------------------------------------------
//
// Where a search begins and how it goes on: rules that are known to work in some regime, orders of
// F and B taken from schedules, and small random changes of both.

[[nodiscard]] inline std::vector<std::vector<fb_code>> fb_orders_of(schedule const& order) {
  std::vector<std::vector<fb_code>> fb_orders(index(order.ranks()));
  for (int rank = 0; rank < order.ranks(); ++rank)
    for (auto const& p : order.passes(rank)) {
      auto const chunk = order.placement().chunk_of(p.stage);
      if (p.kind == pass_kind::forward)
        fb_orders[index(rank)].push_back(static_cast<fb_code>(2 * chunk));
      else if (p.makes_input_gradient())
        fb_orders[index(rank)].push_back(static_cast<fb_code>(2 * chunk + 1));
    }
  return fb_orders;
}

/// Makes and changes rules for one problem. The same seed gives the same candidates.
class candidate_maker {
 public:
  /// @param depths  F before the first B, for each rank of a linear placement; else empty
  /// @param bound   what a schedule costs at least
  candidate_maker(problem const& problem, ticks bound, std::vector<int> depths, std::uint64_t seed)
      : problem_(problem), depths_(std::move(depths)), random_(seed) {
    ticks forward = 0;
    ticks weight = 0;
    for (int s = 0; s < problem.stages(); ++s) {
      forward += problem.costs(s).forward;
      weight += problem.costs(s).backward_weight;
      can_recompute_ = can_recompute_ || problem.costs(s).recompute;
      can_fuse_ = can_fuse_ || may_fuse(s);
    }
    forward_ = forward / problem.stages();
    weight_ = weight / problem.stages();
    // On a V building blocks lead, and more choices only slow the rules down.
    waits_apart_ = !is_linear() && !problem.placement().is_v_shape();
    in_flight_ = tightest_room(problem);
    share_ = share_of_first_chunks(problem);
    for (int r = 0; r < problem.ranks(); ++r) {
      ticks work = 0;
      for (int s : problem.placement().stages_of(r)) work += work_of(problem.costs(s));
      idle_.push_back(std::max<ticks>(0, bound - problem.microbatches() * work));
    }
  }

  /// @return rules that work well in some regime, the likeliest first
  [[nodiscard]] std::vector<planner_rules> known() const {
    auto const styles =
        is_linear() ? linear_styles() : chunk_styles(share_, problem_.placement().is_v_shape());
    std::vector<planner_rules> result;
    for (auto s : styles)
      for (int option = 0; option < 4; ++option) {
        s.recompute = 1 - option % 2;
        s.fuse = option / 2;
        if (s.recompute <= int{can_recompute_} && s.fuse <= int{can_fuse_})
          result.push_back(in_style(s));
      }
    return result;
  }

  [[nodiscard]] planner_rules sample() {
    constexpr std::array<int, 6> waits{0, 1, 2, 2, 4, 8};
    constexpr std::array<int, 8> idle{-1, -1, 5, 6, 7, 8, 8, 9};
    rule_style s;
    s.shape = below(shapes());
    s.unblock = below(3) > 0;
    s.wait = waits[index(below(6))];
    if (!is_linear() && below(2) == 0) s.deep_wait = waits[index(below(6))];
    if (waits_apart_ && below(2) == 0) s.first_wait = waits[index(below(6))];
    s.overrun = 2 * below(5);
    s.forward_first = below(3) == 0 ? below(problem_.ranks() + 1) : below(2);
    s.weights_kept = below(2) == 0 ? rank_rule::no_limit : below(in_flight_ + 2) - 1;
    s.idle = idle[index(below(8))];
    s.in_flight = some_cap();
    s.recompute = can_recompute_ ? below(3) : 0;
    s.fuse = can_fuse_ ? below(3) : 0;
    return in_style(s);
  }

  /// Changes a few rules, on one rank or on a range of ranks.
  void change_rules(planner_rules& rules) {
    for (int n = 1 + below(3); n > 0; --n) {
      auto const [first, last] = some_ranks();
      auto const change = some_change(!rules.fb_orders.empty());
      for (int rank = first; rank <= last; ++rank) apply(change, rules, rank);
    }
  }

  /// Moves a few F or B of one rank past their neighbours.
  void change_fb_orders(planner_rules& rules) {
    for (int n = 1 + below(3); n > 0; --n) {
      auto& row = rules.fb_orders[index(below(problem_.ranks()))];
      auto const size = static_cast<int>(row.size());
      auto const from = below(size);
      auto const far = 1 + below(below(2) == 0 ? 2 : 8);
      auto const at = row.begin() + from;
      if (below(2) == 0 && from + far < size)
        std::rotate(at, at + 1, at + far + 1);
      else if (from >= far)
        std::rotate(at - far, at, at + 1);
    }
  }

  /// @return a whole number from 0 to `end` - 1
  [[nodiscard]] int below(int end) {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(end));
  }

 private:
  enum class kind : std::uint8_t {
    overrun,
    weights_kept,
    idle_allowance,
    recompute,
    fuse,
    wait_for_backward,
    warm_up,
    warm_up_by_one,
    forward_first,
    unblock,
    in_flight,
    deep_forward,
    deep_backward,
    deep_both,
    wait_for_deep_forward,
    wait_for_first_backward,
  };
  struct rule_change {
    kind field;
    ticks time;
    int count;
    int by;
    bool flag;
    int chunk;
  };

  // BW may be cheaper, and where memory is short it may be needed: it keeps nothing for a W.
  [[nodiscard]] bool may_fuse(int stage) const {
    auto const& c = problem_.costs(stage);
    return c.gains_by_fusing() ||
           (c.output_gradient > 0 &&
            problem_.memory_limit(problem_.placement().rank_of(stage)).has_value());
  }

  [[nodiscard]] bool is_linear() const noexcept { return !depths_.empty(); }
  [[nodiscard]] int shapes() const noexcept { return is_linear() ? 6 : 4; }

  [[nodiscard]] int warm_up(int shape, int rank) const noexcept {
    auto const below_it = problem_.ranks() - rank;
    auto const depth = depths_[index(rank)];
    switch (shape) {
      case 0: return depth;
      case 1: return rank_rule::no_limit;
      case 2: return depth + 1;
      case 3: return below_it;
      case 4: return 2 * below_it - 1;
      default: return 2 * below_it;
    }
  }

  [[nodiscard]] planner_rules in_style(rule_style const& s) const {
    planner_rules rules(problem_.ranks(), problem_.stages());
    auto const first =
        s.forward_first < 0 ? std::max(1, in_flight_ - problem_.ranks()) : s.forward_first;
    for (int rank = 0; rank < problem_.ranks(); ++rank) {
      auto& r = rules.ranks[index(rank)];
      r.unblock = s.unblock;
      r.wait_for_first_backward = forward_ * (s.first_wait < 0 ? s.wait : s.first_wait) / 8;
      r.wait_for_backward = forward_ * s.wait / 8;
      r.overrun = weight_ * s.overrun / 8;
      r.forward_first = rank < first;
      if (s.idle >= 0) r.idle_allowance = idle_[index(rank)] * s.idle / 8;
      r.weights_kept = s.weights_kept < 0 ? rank : s.weights_kept;
      if (is_linear()) {
        r.warm_up = warm_up(s.shape, rank);
      } else {
        r.wait_for_deep_forward = forward_ * s.deep_wait / 8;
        r.deep_forward_first = s.shape % 2 == 0;
        r.deep_backward_first = s.shape / 2 == 1;
      }
    }
    for (int stage = 0; stage < problem_.stages(); ++stage) {
      auto& rule = rules.stages[index(stage)];
      if (s.in_flight > 0 && problem_.placement().chunk_of(stage) == 0)
        rule.in_flight = s.in_flight;
      rule.recomputes = problem_.costs(stage).recompute &&
                        (s.recompute == 1 || (s.recompute == 2 && stage < problem_.stages() / 2));
      rule.fuses = may_fuse(stage) && (s.fuse == 1 || (s.fuse == 2 && stage % 2 == 1));
    }
    return rules;
  }

  // A cap of the first chunks, or none: any, or one that shares the memory about as it should be.
  [[nodiscard]] int some_cap() {
    if (share_ == 0) return below(3) > 0 ? 0 : 1 + below(2 * in_flight_);
    auto const dice = below(4);
    if (dice == 0) return 0;
    return dice == 1 ? 1 + below(2 * in_flight_) : std::max(1, share_ + below(7) - 3);
  }

  // One rank, several, or all.
  [[nodiscard]] std::pair<int, int> some_ranks() {
    if (below(8) == 0) return {0, problem_.ranks() - 1};
    auto const a = below(problem_.ranks());
    auto const b = below(3) == 0 ? below(problem_.ranks()) : a;
    return std::minmax(a, b);
  }

  [[nodiscard]] rule_change some_change(bool order_is_settled) {
    constexpr std::array<int, 8> eighths{0, 1, 2, 2, 3, 4, 6, 8};
    std::array<kind, 16> kinds{kind::overrun, kind::weights_kept, kind::idle_allowance};
    int n = 3;
    if (can_recompute_) kinds[index(n++)] = kind::recompute;
    if (can_fuse_) kinds[index(n++)] = kind::fuse;
    if (!order_is_settled) {
      for (auto k :
           {kind::wait_for_backward,
            kind::warm_up,
            kind::warm_up_by_one,
            kind::forward_first,
            kind::unblock,
            kind::in_flight})
        kinds[index(n++)] = k;
      if (!is_linear())
        for (auto k :
             {kind::deep_forward,
              kind::deep_backward,
              kind::deep_both,
              kind::wait_for_deep_forward})
          kinds[index(n++)] = k;
      if (waits_apart_) kinds[index(n++)] = kind::wait_for_first_backward;
    }
    rule_change change{};
    change.field = kinds[index(below(n))];
    bool const waits = change.field == kind::wait_for_first_backward ||
                       change.field == kind::wait_for_backward ||
                       change.field == kind::wait_for_deep_forward;
    change.time = waits ? forward_ * eighths[index(below(8))] / 8 : weight_ * below(9) / 8;
    bool const caps = change.field == kind::in_flight;
    change.count = below(5) == 0 && !is_warm_up(change.field)
                       ? rank_rule::no_limit
                       : (change.field == kind::weights_kept ? 0 : 1) +
                             below(caps ? 2 * in_flight_ : in_flight_ + 1);
    change.by = below(3) - 1;
    change.flag = below(2) == 0;
    change.chunk = below(64);
    return change;
  }
  [[nodiscard]] static bool is_warm_up(kind k) noexcept {
    return k == kind::warm_up || k == kind::warm_up_by_one;
  }

  void apply(rule_change const& c, planner_rules& rules, int rank) const {
    auto& r = rules.ranks[index(rank)];
    auto const stages = problem_.placement().stages_of(rank);
    auto const stage = stages[index(c.chunk) % stages.size()];
    switch (c.field) {
      case kind::overrun: r.overrun = c.time; break;
      case kind::weights_kept: r.weights_kept = c.count; break;
      case kind::idle_allowance:
        r.idle_allowance = c.flag && c.by == 0
                               ? std::numeric_limits<ticks>::max()
                               : static_cast<ticks>(idle_[index(rank)] * (c.chunk + 1) / 48);
        break;
      case kind::recompute:
        rules.stages[index(stage)].recomputes = c.flag && problem_.costs(stage).recompute;
        break;
      case kind::fuse: rules.stages[index(stage)].fuses = c.flag && may_fuse(stage); break;
      case kind::wait_for_first_backward: r.wait_for_first_backward = c.time; break;
      case kind::wait_for_backward:
        r.wait_for_backward = c.time;
        if (!waits_apart_) r.wait_for_first_backward = c.time;
        break;
      case kind::warm_up: r.warm_up = c.count; break;
      case kind::warm_up_by_one:
        r.warm_up = std::max(1, std::min(r.warm_up, in_flight_) + c.by);
        break;
      case kind::forward_first: r.forward_first = c.flag; break;
      case kind::unblock: r.unblock = c.flag; break;
      case kind::in_flight: rules.stages[index(stage)].in_flight = c.count; break;
      case kind::deep_forward: r.deep_forward_first = c.flag; break;
      case kind::deep_backward: r.deep_backward_first = c.flag; break;
      case kind::deep_both:
        r.deep_forward_first = c.flag;
        r.deep_backward_first = !c.flag;
        break;
      case kind::wait_for_deep_forward: r.wait_for_deep_forward = c.time; break;
    }
  }

  problem const& problem_;
  std::vector<int> depths_;
  std::mt19937_64 random_;
  std::vector<ticks> idle_;  // of each rank, in a schedule that meets the bound
  ticks forward_ = 0;
  ticks weight_ = 0;
  int in_flight_ = 0;         // microbatches that the tightest rank has room for
  int share_ = 0;             // of them, in flight in the first chunks; 0 where that is not limited
  bool waits_apart_ = false;  // for the first B of a rank, and for later ones
  bool can_recompute_ = false;
  bool can_fuse_ = false;
};

// ---- the search --------------------------------------------------------------------------------
//
// The part of the search that changes rules: it tries those that are known to be good, then changes
// the best it has. What it tries depends on the problem and the seed alone.

/// Looks for rules that make a cheap schedule of one problem. A candidate is either rules alone, or
/// an order of all F and B for which rules place the W, of a building block or any; all three kinds
/// are kept and changed side by side.
class rule_search {
 public:
  static constexpr int first_tries = 1000;  ///< of one start

  /// @param bound    of the cost: how long ranks idle at best
  /// @param depths   F before the first B, for each rank of a linear placement; else empty
  /// @param reserve  bytes of each rank that are not to be used; empty for none
  rule_search(
      problem const& problem,
      ticks bound,
      std::vector<int> depths,
      std::vector<bytes> const& reserve,
      std::uint64_t seed)
      : problem_(problem),
        typical_(with_mean_microbatch(problem)),
        engine_(problem, reserve),
        make_(typical_, bound, std::move(depths), seed),
        start_(problem),
        rules_(problem),
        best_of_earlier_starts_(problem),
        orders_(problem),
        blocks_(problem),
        changed_(problem.ranks(), problem.stages()) {
    if (problem.placement().is_v_shape() && problem.ranks() > 1)
      block_orders_.emplace(typical_, room(), seed);
  }

  /// Tries the rules that are known to be good, the likeliest first.
  /// @param goes_on  asked before each try
  template <class Goes_on>
  void try_known(Goes_on const& goes_on) {
    for (auto& rules : make_.known()) {
      if (!goes_on()) return;
      attempt(rules_, std::move(rules));
    }
    start_ = rules_;
  }

  /// Tries orders of F and B that are known to be good.
  /// @param goes_on  asked before each try
  template <class Goes_on>
  void try_orders(
      std::vector<std::vector<std::vector<fb_code>>> const& orders, Goes_on const& goes_on) {
    for (auto const& order : orders) try_fb_orders(order, goes_on);
    if (block_orders_) try_first_blocks(goes_on);
  }

  /// Tries a change of the best rules or orders, or others. There must be some.
  void change() {
    if (block_orders_ && block_orders_->below(16) < (blocks_.cost == cost() ? 12 : 2)) {
      try_block();
      return;
    }
    if (rules_are_new_ && rules_.cost < orders_.cost && make_.below(8) == 0)
      return continue_in_fb_orders();
    bool const orders_lead = orders_.cost < rules_.cost;
    auto const dice = make_.below(16);
    if (orders_.cost != never && dice < (orders_lead ? 11 : 2)) {
      auto changed = orders_.rules;
      if (make_.below(4) == 0)
        make_.change_rules(changed);
      else
        make_.change_fb_orders(changed);
      attempt(orders_, std::move(changed), most_for_change(orders_.cost));
    } else if (dice == 15 || rules_.cost == never) {
      attempt(rules_, make_.sample());
    } else {
      if (--tries_left_ == 0) start_again();
      auto changed = rules_.rules;
      make_.change_rules(changed);
      attempt(rules_, std::move(changed), most_for_change(rules_.cost));
    }
  }

  [[nodiscard]] std::vector<bytes> room() const {
    std::vector<bytes> room;
    for (int rank = 0; rank < problem_.ranks(); ++rank) room.push_back(engine_.room(rank));
    return room;
  }

  /// @return the cost of the best candidate; `never` when none was found
  [[nodiscard]] ticks cost() const noexcept {
    return std::min({rules_.cost, orders_.cost, blocks_.cost, best_of_earlier_starts_.cost});
  }
  /// @return its schedule; there must be one
  [[nodiscard]] schedule best() {
    auto const least = cost();
    auto const& rules = least == orders_.cost   ? orders_.rules
                        : least == blocks_.cost ? blocks_.rules
                        : least == rules_.cost  ? rules_.rules
                                                : best_of_earlier_starts_.rules;
    static_cast<void>(engine_.run(rules));
    return engine_.order();
  }
  [[nodiscard]] std::int64_t tries() const noexcept { return tries_; }
  /// @return what the tries took so far, in passes
  [[nodiscard]] double work() const noexcept { return work_; }
  /// @return what they had taken when the best was found
  [[nodiscard]] double work_at_gain() const noexcept { return work_at_gain_; }

 private:
  struct candidate {
    explicit candidate(problem const& problem) : rules(problem.ranks(), problem.stages()) {}
    planner_rules rules;
    ticks cost = never;
  };

  // Keeps rules that are as good as the best of their kind, so that a search can cross plains.
  // @param most  what they may cost
  // @return whether it kept them
  bool attempt(candidate& best, planner_rules&& rules, ticks most = never) {
    auto const found = engine_.run(rules, std::min(best.cost, most));
    ++tries_;
    constexpr double overhead = 100;  // of a try, in passes
    work_ += static_cast<double>(engine_.placed()) + overhead;
    bool const keeps = found <= best.cost && found != never;
    if (keeps) {
      if (found < cost()) work_at_gain_ = work_;
      if (found < best.cost && &best == &rules_) rules_are_new_ = true;
      best.cost = found;
      std::swap(best.rules, rules);
    }
    return keeps;
  }

  // An order of F and B leaves open where W goes.
  template <class Goes_on>
  void try_fb_orders(std::vector<std::vector<fb_code>> const& fb_orders, Goes_on const& goes_on) {
    ticks const w = typical_.costs(0).backward_weight;
    for (auto const overrun : {ticks{0}, w / 2, w})
      for (int const kept : {rank_rule::no_limit, 1}) {
        if (!goes_on()) return;
        planner_rules rules(problem_.ranks(), problem_.stages());
        for (auto& r : rules.ranks) {
          r.overrun = overrun;
          r.weights_kept = kept;
        }
        for (std::size_t s = 0; s < rules.stages.size(); ++s)
          rules.stages[s] = {
              .fuses = rules_.rules.stages[s].fuses,
              .recomputes = rules_.rules.stages[s].recomputes};
        rules.fb_orders = fb_orders;
        attempt(orders_, std::move(rules));
      }
  }

  // Where memory is short, few blocks fit.
  template <class Goes_on>
  void try_first_blocks(Goes_on const& goes_on) {
    constexpr int most_tries = 32;
    constexpr int most_shapes = 1000;
    int tried = 0;
    for (int i = 0; i < most_shapes && tried < most_tries && goes_on(); ++i)
      tried += try_block() ? 1 : 0;
  }

  // A block that is like the best so far, or any.
  // @return whether there was a new one to try
  bool try_block() {
    bool const any = blocks_.cost == never || block_orders_->below(4) == 0;
    if (any)
      changed_.stages = rules_.rules.stages;
    else
      changed_ = blocks_.rules;
    work_ += v_block_orders::work(problem_);
    if (!(any ? block_orders_->sample(changed_) : block_orders_->change(changed_))) return false;
    // A block that costs much more than the best of all leads nowhere.
    auto const least = cost();
    auto const most = least != never ? least + least / 16 : never;
    if (attempt(blocks_, std::move(changed_), most)) block_orders_->keep();
    return true;
  }

  // What a changed candidate may cost. With several chunks per rank, every other change is for a
  // gain alone: it is given up as soon as a rank has idled for as long as in the best schedule.
  // That is early, since most of what there is to gain is lost before the first B.
  [[nodiscard]] ticks most_for_change(ticks best) {
    if (problem_.placement().is_linear() || best == never) return never;
    return make_.below(2) == 0 ? best - 1 : never;
  }

  // Where changes lead differs from one start to the next: on the hard problems that were tried, a
  // quarter of the starts meets the bound within the first tries. Most starts are short, a few are
  // longer, by D. Knuth's reluctant doubling: 1 1 2 1 1 2 4 1 1 2 ... times first_tries.
  void start_again() {
    if ((run_ & -run_) == length_) {
      ++run_;
      length_ = 1;
    } else {
      length_ *= 2;
    }
    tries_left_ = length_ * first_tries;
    if (rules_.cost < best_of_earlier_starts_.cost) best_of_earlier_starts_ = std::move(rules_);
    rules_ = start_;
    if (make_.below(2) == 0) return;
    rules_.cost = never;  // another style, the best of a few
    constexpr int samples = 24;
    for (int i = 0; i < samples; ++i) attempt(rules_, make_.sample());
    if (rules_.cost == never) rules_ = start_;
  }

  // Takes the order of F and B from the best rules, to change it where rules are too coarse.
  void continue_in_fb_orders() {
    rules_are_new_ = false;
    static_cast<void>(engine_.run(rules_.rules));
    auto rules = rules_.rules;
    rules.fb_orders = fb_orders_of(engine_.order());
    attempt(orders_, std::move(rules));
  }

  problem const& problem_;
  problem typical_;  // rules are made by the mean microbatch, and tried with all as they are
  list_scheduler engine_;
  candidate_maker make_;
  candidate start_;                   // the best known rules
  candidate rules_;                   // what has become of them
  candidate best_of_earlier_starts_;  // the best rules of earlier starts
  candidate orders_;
  candidate blocks_;
  planner_rules changed_;                       // the next block
  std::optional<v_block_orders> block_orders_;  // on a V
  int tries_left_ = first_tries;                // of this start
  int run_ = 1;
  int length_ = 1;
  bool rules_are_new_ = false;
  double work_ = 0;
  double work_at_gain_ = 0;
  std::int64_t tries_ = 0;
};

}  // namespace zbpp::detail
