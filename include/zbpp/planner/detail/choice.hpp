// SPDX-License-Identifier: Apache-2.0
//
// How a rank that is free chooses its next pass: by rules alone, or along an order of F and B that
// is settled. This is where W finds its place.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/planner/detail/pipeline_state.hpp>
#include <zbpp/planner/detail/rank_rules.hpp>

#include <algorithm>
#include <span>

namespace zbpp::detail {

/// Says what a rank does next: a pass on one of its stages, or, with no stage, waiting until `at`.
struct choice {
  action what{};
  int stage = -1;
  ticks at = never;
};

/// Chooses for one rank at one moment.
class chooser {
 public:
  chooser(pipeline_state const& state, int rank, rank_rule const& rule, ticks now)
      : state_(state), rank_(state.rank(rank)), rule_(rule), now_(now) {}

  /// Chooses by rules: B, F, or a W where they say so or where nothing else could start.
  [[nodiscard]] choice by_rules() {
    look();
    bool ready_f = forward_.at <= now_;
    bool ready_b = backward_.at <= now_;
    if (weight_ >= 0 && blocked_ && !ready_f && rule_.unblock) return {action::weight, weight_};
    if (ready_f && ready_b) (rule_.forward_first ? ready_b : ready_f) = false;
    if (ready_b) return backward(backward_.stage);
    if (ready_f && waits_for_deep_forward()) {
      forward_ = deepest_;
      ready_f = false;
    }
    if (ready_f && is_near(backward_.at) && may_wait(backward_.at)) ready_f = false;
    if (ready_f && !too_many_pending(backward_.at)) return {action::forward, forward_.stage};

    // What could start next, were it not for a W.
    auto const next = forward_.at > now_ ? std::min(forward_.at, backward_.at) : backward_.at;
    if (weight_ >= 0 && (ready_f || blocked_ || lacks_room(backward_.stage) || goes_before(next)))
      return {action::weight, weight_};
    if (backward_.stage >= 0) {  // a gradient is on its way: its R can run before it arrives
      auto const& s = state_.stage(backward_.stage);
      if (needs_recompute(s) && now_ + s.recompute <= next && fits_recompute(s))
        return {action::recompute, backward_.stage};
    }
    return {.at = next};
  }

  /// Chooses along `steps`: the next F or B runs when it can, W where it must or where it delays
  /// nothing.
  [[nodiscard]] choice along(std::span<step_code const> steps) {
    for (int s : rank_.stages) consider_weight(s);
    auto const done = index(rank_.forwards) + index(rank_.backwards);
    if (done == steps.size()) return {action::weight, weight_};
    auto const stage = rank_.stages[steps[done] / 2];
    auto const& s = state_.stage(stage);
    bool const is_f = steps[done] % 2 == 0;
    if (rank_.held + (is_f ? s.kept : s.added) > s.limit) return {action::weight, weight_};
    auto const at =
        std::max(now_, is_f ? state_.forward_input(stage) : state_.backward_input(stage));
    if (!is_f && needs_recompute(s) && at != never && (at == now_ || now_ + s.recompute <= at))
      return backward(stage);
    if (at > now_)
      return weight_ >= 0 && goes_before(at) ? choice{action::weight, weight_} : choice{.at = at};
    if (weight_ >= 0 && state_.stage(weight_).pending() > rule_.weights_kept)
      return {action::weight, weight_};
    return {is_f ? action::forward : action::backward, stage};
  }

 private:
  // The stage whose F, or B, comes first, and when its input is there.
  struct candidate {
    int stage = -1;
    ticks at = never;
  };

  void look() {
    bool const may_fill = rank_.backwards > 0 || rank_.forwards < rule_.warm_up;
    for (int i : rank_.stages) {
      auto const& s = state_.stage(i);
      if (may_fill && s.f < state_.microbatches() && s.f - s.b < s.in_flight) {
        auto const at = std::max(now_, state_.forward_input(i));
        if (rank_.held + s.kept > s.room) {
          blocked_ = blocked_ || at == now_;
        } else {
          prefer(forward_, i, at, rule_.deep_forward_first);
          if (at != never) deepest_ = {i, at};
        }
      }
      if (s.b < s.f && (rank_.recomputed < 0 || rank_.recomputed == i))
        prefer(backward_, i, std::max(now_, state_.backward_input(i)), rule_.deep_backward_first);
      consider_weight(i);
    }
  }

  static void prefer(candidate& best, int stage, ticks at, bool deep_first) noexcept {
    if (at == never) return;
    if (at < best.at || (at == best.at && deep_first)) best = {stage, at};
  }

  void consider_weight(int i) noexcept {
    auto const pending = state_.stage(i).pending();
    if (pending > (weight_ < 0 ? 0 : state_.stage(weight_).pending())) weight_ = i;
  }

  // A B whose turn it is, its R first, and before that the W that stand in their way.
  [[nodiscard]] choice backward(int stage) const {
    auto const& s = state_.stage(stage);
    if (!needs_recompute(s))
      return fits_backward(s) ? choice{action::backward, stage} : choice{action::weight, weight_};
    return fits_recompute(s) ? choice{action::recompute, stage} : choice{action::weight, weight_};
  }
  [[nodiscard]] bool needs_recompute(stage_state const& s) const noexcept {
    return s.recomputes && rank_.recomputed < 0;
  }
  [[nodiscard]] bool fits_recompute(stage_state const& s) const noexcept {
    return rank_.held + s.activation - s.kept + s.added <= s.limit;
  }
  [[nodiscard]] bool lacks_room(int stage) const noexcept {
    return stage >= 0 && !fits_backward(state_.stage(stage));
  }
  [[nodiscard]] bool fits_backward(stage_state const& s) const noexcept {
    return rank_.held + s.added <= s.limit;
  }

  // Whether the rank leaves an F that could run for one of a later stage that is due; a B that
  // could run as well is for the rules to choose from.
  [[nodiscard]] bool waits_for_deep_forward() const noexcept {
    return deepest_.at > now_ && deepest_.at - now_ < rule_.wait_for_deep_forward &&
           backward_.at > now_ && may_wait(deepest_.at);
  }
  [[nodiscard]] bool is_near(ticks at) const noexcept {
    auto const wait =
        rank_.backwards == 0 ? rule_.wait_for_first_backward : rule_.wait_for_backward;
    return at > now_ && at - now_ < wait;
  }
  // Whether waiting until `at` keeps the idle time of the rank within what its rule allows.
  [[nodiscard]] bool may_wait(ticks at) const noexcept {
    return rank_.first < 0 ||
           at - rank_.first - (rank_.all_work - rank_.work) <= rule_.idle_allowance;
  }
  // Whether a W goes first when something else could start at `next`.
  [[nodiscard]] bool goes_before(ticks next) const noexcept {
    if (next == never) return true;
    auto const end = now_ + state_.stage(weight_).backward_weight;
    return end <= next || (end <= next + rule_.overrun && may_overrun()) || !may_wait(next);
  }
  [[nodiscard]] bool may_overrun() const noexcept {
    return rule_.overruns_to_the_end ||
           index(rank_.forwards) < rank_.stages.size() * index(state_.microbatches());
  }
  [[nodiscard]] bool too_many_pending(ticks next_backward) const noexcept {
    return weight_ >= 0 && state_.stage(weight_).pending() > rule_.weights_kept &&
           goes_before(next_backward);
  }

  pipeline_state const& state_;
  rank_state const& rank_;
  rank_rule const& rule_;
  ticks now_;
  candidate forward_;
  candidate deepest_;  // of the F, the one of the latest stage
  candidate backward_;
  int weight_ = -1;       // stage with the most W that wait
  bool blocked_ = false;  // an F has its input, but no memory
};

}  // namespace zbpp::detail
