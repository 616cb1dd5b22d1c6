// SPDX-License-Identifier: Apache-2.0
//
// What every schedule of a problem must at least have: the times and sizes from which lower bounds
// are made. Options that a schedule may use, BW, R and pairs, are granted here free of charge, and
// so is what B adds for W.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace zbpp::detail {

/// @return `amount / unit` rounded up, and 0 where `amount` is not positive; `unit` is positive
[[nodiscard]] constexpr std::int64_t units_for(std::int64_t amount, std::int64_t unit) noexcept {
  return amount <= 0 ? 0 : amount / unit + (amount % unit != 0);
}

/// States the least that one stage takes and keeps, for one microbatch.
struct stage_terms {
  ticks forward = 0;
  ticks backward_input = 0;
  ticks backward_weight = 0;        ///< what BW adds to B, where that is less than W
  bytes activation = 0;             ///< from F to B; what R does not make again
  bytes weight_gradient_input = 0;  ///< at most `activation`
  bytes held = 0;                   ///< activations of this stage and the earlier ones of its rank
  bytes room = 0;                   ///< for the activations of its rank while one of its F runs

  /// @return the time of all passes of one microbatch
  [[nodiscard]] ticks all() const noexcept { return forward + backward_input + backward_weight; }
  /// @return how many of `most` F fit in before the first B, at least one
  [[nodiscard]] int in_flight(int most) const noexcept {
    return held == 0 ? most : static_cast<int>(std::min<bytes>(room / held, most));
  }
  /// @return what B and W must have freed before F number `n`, counted from 1; not positive:
  /// nothing
  [[nodiscard]] bytes need(std::int64_t n) const noexcept { return n * held - room; }
  /// @return how many B of an earlier stage of the rank must come before F number `n` when only `b`
  /// B
  ///         of this stage and those between do
  /// @param held_there  `held` of the earlier stage
  [[nodiscard]] std::int64_t backwards_with(
      std::int64_t n, std::int64_t b, bytes held_there) const noexcept {
    auto const rest = need(n) - b * (held - held_there);
    return rest <= 0 ? 0 : units_for(rest, held_there);
  }
  /// @return how many B of this stage must come before F number `n`
  [[nodiscard]] std::int64_t least_backward(std::int64_t n) const noexcept {
    return backwards_with(n, n - 1, held);
  }
  /// @return how many W of this stage must come before F number `n` when only `b` B do
  [[nodiscard]] std::int64_t weights_with(std::int64_t n, std::int64_t b) const noexcept {
    auto const rest = need(n) - b * (held - weight_gradient_input);
    return rest <= 0 ? 0 : units_for(rest, weight_gradient_input);
  }
};

/// Holds the terms of all stages, and the least times between passes of one microbatch.
class bound_terms {
 public:
  explicit bound_terms(problem const& problem) : microbatches_(problem.microbatches()) {
    down_.push_back(0);
    up_.push_back(0);
    for (int s = 0; s < problem.stages(); ++s) {
      stages_.push_back(terms_of(problem.costs(s)));
      pace_.push_back(std::max(s == 0 ? 0 : pace_.back(), stages_.back().forward));
      if (s + 1 == problem.stages()) break;
      down_.push_back(down_.back() + stages_.back().forward + problem.transfer_time(s, s + 1));
      up_.push_back(up_.back() + stages_.back().backward_input + problem.transfer_time(s + 1, s));
    }
    for (int r = 0; r < problem.ranks(); ++r) find_room(problem, r);
  }

  [[nodiscard]] int stages() const noexcept { return static_cast<int>(stages_.size()); }
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  [[nodiscard]] stage_terms const& operator[](int stage) const noexcept {
    return stages_[index(stage)];
  }

  /// @return the slowest F up to a stage: F number `n` starts there `n - 1` times as long after the
  ///         first, or later. For the first F of each of these stages starts as soon as it can.
  [[nodiscard]] ticks pace(int stage) const noexcept { return pace_[index(stage)]; }
  /// @return from the start of F of a stage to the start of F of a later one
  [[nodiscard]] ticks down(int from, int to) const noexcept {
    return down_[index(to)] - down_[index(from)];
  }
  /// @return from the end of B of a stage to the end of B of an earlier one
  [[nodiscard]] ticks up(int from, int to) const noexcept {
    return up_[index(from)] - up_[index(to)];
  }
  /// @return from the start of F of a stage to the end of its B
  [[nodiscard]] ticks there_and_back(int stage) const noexcept {
    auto const& last = stages_.back();
    return down(stage, stages() - 1) + last.forward + last.backward_input + up(stages() - 1, stage);
  }

 private:
  // Where W needs more than F keeps, the terms say that it needs just that, and that B adds
  // nothing. A schedule of the problem is one of these terms, too, and holds no more at any time:
  // as much from F to B, less by what B adds while it runs, and no more from B to W. So what bounds
  // the schedules of these terms bounds those of the problem (docs/bounds.md, "Relaxations").
  [[nodiscard]] static stage_terms terms_of(stage_costs const& c) {
    auto const kept = c.recompute ? c.recompute_input : c.activation;
    auto const fused = c.of(pass_kind::backward);
    auto const saved = c.most_saved_by_pairing();
    auto const input = std::max<ticks>(c.backward_input - saved, 0);
    return {
        .forward = c.forward,
        .backward_input = input,
        .backward_weight =
            std::min({c.backward_weight, fused - c.backward_input, fused - saved - input}),
        .activation = kept,
        .weight_gradient_input = std::min(c.weight_gradient_input, kept),
        .room = std::numeric_limits<bytes>::max()};
  }

  // While F runs, memory also holds what is fixed, its workspace, and its input and output.
  void find_room(problem const& problem, int rank) {
    bytes held = 0;
    bytes fixed = 0;
    for (int s : problem.placement().stages_of(rank)) fixed += problem.costs(s).static_memory;
    for (int s : problem.placement().stages_of(rank)) {
      auto& t = stages_[index(s)];
      held += t.activation;
      t.held = held;
      if (auto const limit = problem.memory_limit(rank)) {
        t.room = *limit - fixed - problem.costs(s).workspace;
        if (s > 0) t.room -= problem.costs(s - 1).edge;
        if (s + 1 < problem.stages()) t.room -= problem.costs(s).edge;
      }
      t.room =
          std::max(t.room, held);  // with less there is no schedule; the rules need no such case
    }
  }

  int microbatches_;
  std::vector<stage_terms> stages_;
  std::vector<ticks> pace_;
  std::vector<ticks> down_;  // from the start of the first F, without waiting
  std::vector<ticks> up_;    // to the end of the last B, without waiting
};

}  // namespace zbpp::detail
