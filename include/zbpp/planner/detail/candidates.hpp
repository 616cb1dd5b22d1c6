// SPDX-License-Identifier: Apache-2.0
//
// Where a search begins and how it goes on: rules that are known to work in some regime, orders of
// F and B taken from schedules, and small random changes of both.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/rank_rules.hpp>
#include <zbpp/planner/detail/rule_styles.hpp>
#include <zbpp/planner/detail/work.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// @return for each rank the order of the F and B of a schedule
[[nodiscard]] inline std::vector<std::vector<step_code>> steps_of(schedule const& order) {
  std::vector<std::vector<step_code>> steps(index(order.ranks()));
  for (int rank = 0; rank < order.ranks(); ++rank)
    for (auto const& p : order.passes(rank)) {
      auto const chunk = order.placement().chunk_of(p.stage);
      if (p.kind == pass_kind::forward)
        steps[index(rank)].push_back(static_cast<step_code>(2 * chunk));
      else if (p.makes_input_gradient())
        steps[index(rank)].push_back(static_cast<step_code>(2 * chunk + 1));
    }
  return steps;
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

  /// @return rules of one random style on all ranks
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
      auto const change = some_change(!rules.steps.empty());
      for (int rank = first; rank <= last; ++rank) apply(change, rules, rank);
    }
  }

  /// Moves a few F or B of one rank past their neighbours.
  void change_steps(planner_rules& rules) {
    for (int n = 1 + below(3); n > 0; --n) {
      auto& row = rules.steps[index(below(problem_.ranks()))];
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
    kind what;
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

  [[nodiscard]] rule_change some_change(bool steps_are_settled) {
    constexpr std::array<int, 8> eighths{0, 1, 2, 2, 3, 4, 6, 8};
    std::array<kind, 16> kinds{kind::overrun, kind::weights_kept, kind::idle_allowance};
    int n = 3;
    if (can_recompute_) kinds[index(n++)] = kind::recompute;
    if (can_fuse_) kinds[index(n++)] = kind::fuse;
    if (!steps_are_settled) {
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
    change.what = kinds[index(below(n))];
    bool const waits = change.what == kind::wait_for_first_backward ||
                       change.what == kind::wait_for_backward ||
                       change.what == kind::wait_for_deep_forward;
    change.time = waits ? forward_ * eighths[index(below(8))] / 8 : weight_ * below(9) / 8;
    bool const caps = change.what == kind::in_flight;
    change.count = below(5) == 0 && !is_warm_up(change.what)
                       ? rank_rule::no_limit
                       : (change.what == kind::weights_kept ? 0 : 1) +
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
    switch (c.what) {
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

}  // namespace zbpp::detail
