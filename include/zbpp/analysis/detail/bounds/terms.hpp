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
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace zbpp::detail {

/// @return `amount / unit` rounded up, and 0 where `amount` is not positive; `unit` is positive
[[nodiscard]] constexpr std::int64_t units_for(std::int64_t amount, std::int64_t unit) noexcept {
  return amount <= 0 ? 0 : amount / unit + (amount % unit != 0);
}

/// Holds the least times of the passes of one stage, for one microbatch or added up over several.
struct pass_terms {
  ticks forward = 0;
  ticks backward_input = 0;
  ticks backward_weight = 0;  ///< what BW adds to B, where that is less than W

  [[nodiscard]] constexpr ticks all() const noexcept {
    return forward + backward_input + backward_weight;
  }
};

/// States the least that one stage keeps, for each microbatch.
struct stage_terms {
  bytes activation = 0;             ///< from F to B; what R does not make again
  bytes weight_gradient_input = 0;  ///< at most `activation`
  bytes held = 0;                   ///< activations of this stage and the earlier ones of its rank
  bytes room = 0;                   ///< for the activations of its rank while one of its F runs

  /// @return how many of `most` F fit in before the first B, at least one
  [[nodiscard]] int in_flight(int most) const noexcept {
    return held == 0 ? most : static_cast<int>(std::min<bytes>(room / held, most));
  }
  /// @return bytes that B and W must free before F number `n`, counted from 1; none if not positive
  [[nodiscard]] bytes need(std::int64_t n) const noexcept { return n * held - room; }
  /// @return how many B of an earlier stage of the rank must come before F number `n` when only `b`
  ///         B of this stage and those between do
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
  explicit bound_terms(problem const& problem)
      : microbatches_(problem.microbatches()), stages_(index(problem.stages())) {
    for (int s = 0; s < problem.stages(); ++s) stages_[index(s)] = sizes_of(problem.costs(s));
    for (int k = 0; k < problem.distinct_microbatches(); ++k) add_times(problem, k);
    if (problem.distinct_microbatches() > 1) add_up();
    for (int r = 0; r < problem.ranks(); ++r) find_room(problem, r);
  }

  [[nodiscard]] int stages() const noexcept { return static_cast<int>(stages_.size()); }
  [[nodiscard]] int microbatches() const noexcept { return microbatches_; }
  /// @return whether all microbatches take the same times
  [[nodiscard]] bool are_alike() const noexcept { return step_ == 0; }
  [[nodiscard]] stage_terms const& operator[](int stage) const noexcept {
    return stages_[index(stage)];
  }

  [[nodiscard]] pass_terms const& of(int stage, std::int64_t microbatch) const noexcept {
    return times_[at(stage, microbatch)];
  }
  [[nodiscard]] pass_terms first(int stage, std::int64_t n) const noexcept {
    if (!are_alike()) return sums_[at(stage, n)];
    auto const& t = of(stage, 0);
    return {n * t.forward, n * t.backward_input, n * t.backward_weight};
  }
  [[nodiscard]] pass_terms all(int stage) const noexcept { return first(stage, microbatches_); }
  [[nodiscard]] pass_terms const& least(int stage) const noexcept {
    return are_alike() ? of(stage, 0) : least_[index(stage)];
  }
  [[nodiscard]] ticks longest_forward(int stage) const noexcept {
    return are_alike() ? of(stage, 0).forward : longest_forward_[index(stage)];
  }

  /// @return from the start of the first F of a stage to that of F number `n`, counted from 0, at
  ///         least: those before it come one after another, here and on all stages before. For the
  ///         first F of each of these stages starts as soon as it can.
  [[nodiscard]] ticks arrival(int stage, std::int64_t n) const noexcept {
    return are_alike() ? n * pace_[index(stage)] : arrivals_[at(stage, n)];
  }
  /// @return from the start of F of a stage to the start of F of a later one
  [[nodiscard]] ticks down(std::int64_t microbatch, int from, int to) const noexcept {
    return down_[at(to, microbatch)] - down_[at(from, microbatch)];
  }
  /// @return from the end of B of a stage to the end of B of an earlier one
  [[nodiscard]] ticks up(std::int64_t microbatch, int from, int to) const noexcept {
    return up_[at(from, microbatch)] - up_[at(to, microbatch)];
  }
  /// @return from the end of F of a stage to the start of F of the next one
  [[nodiscard]] ticks hop_down(std::int64_t microbatch, int from) const noexcept {
    return down(microbatch, from, from + 1) - of(from, microbatch).forward;
  }
  /// @return from the end of B of a stage to the start of B of the one before
  [[nodiscard]] ticks hop_up(std::int64_t microbatch, int from) const noexcept {
    return up(microbatch, from, from - 1) - of(from - 1, microbatch).backward_input;
  }
  /// @return from the start of F of a stage to the end of its B
  [[nodiscard]] ticks there_and_back(std::int64_t microbatch, int stage) const noexcept {
    auto const end = stages() - 1;
    auto const& last = of(end, microbatch);
    return down(microbatch, stage, end) + last.forward + last.backward_input +
           up(microbatch, end, stage);
  }

 private:
  // Where W needs more than F keeps, the terms say that it needs just that, and that B adds
  // nothing. A schedule of the problem is one of these terms, too, and holds no more at any time:
  // as much from F to B, less by what B adds while it runs, and no more from B to W. So what bounds
  // the schedules of these terms bounds those of the problem (docs/bounds.md, "Relaxations").
  [[nodiscard]] static stage_terms sizes_of(stage_costs const& c) {
    auto const kept = c.recompute ? c.recompute_input : c.activation;
    return {
        .activation = kept,
        .weight_gradient_input = std::min(c.weight_gradient_input, kept),
        .room = std::numeric_limits<bytes>::max()};
  }
  [[nodiscard]] static pass_terms times_of(stage_costs const& c) {
    auto const fused = c.of(pass_kind::backward);
    auto const saved = c.most_saved_by_pairing();
    auto const input = std::max<ticks>(c.backward_input - saved, 0);
    return {
        .forward = c.forward,
        .backward_input = input,
        .backward_weight =
            std::min({c.backward_weight, fused - c.backward_input, fused - saved - input})};
  }

  [[nodiscard]] std::size_t at(int stage, std::int64_t n) const noexcept {
    return index(n * step_ + stage);
  }

  void add_times(problem const& problem, int microbatch) {
    ticks down = 0;
    ticks up = 0;
    for (int s = 0; s < problem.stages(); ++s) {
      auto const t = times_of(problem.costs(s, microbatch));
      times_.push_back(t);
      down_.push_back(down);
      up_.push_back(up);
      if (microbatch == 0) pace_.push_back(std::max(s == 0 ? 0 : pace_.back(), t.forward));
      if (s + 1 == problem.stages()) break;
      down += t.forward + problem.transfer_time(s, s + 1, microbatch);
      up += t.backward_input + problem.transfer_time(s + 1, s, microbatch);
    }
  }

  // What microbatches take together, and at least and most, where they differ.
  void add_up() {
    step_ = stages();
    least_.assign(times_.begin(), times_.begin() + step_);
    longest_forward_.resize(stages_.size());
    sums_.resize(stages_.size());
    for (int k = 0; k < microbatches_; ++k)
      for (int s = 0; s < step_; ++s) {
        auto const& t = of(s, k);
        auto const& sum = sums_[at(s, k)];
        sums_.push_back(
            {sum.forward + t.forward,
             sum.backward_input + t.backward_input,
             sum.backward_weight + t.backward_weight});
        auto& least = least_[index(s)];
        least = {
            std::min(least.forward, t.forward),
            std::min(least.backward_input, t.backward_input),
            std::min(least.backward_weight, t.backward_weight)};
        longest_forward_[index(s)] = std::max(longest_forward_[index(s)], t.forward);
        auto const before = k == 0 ? 0 : arrivals_[at(s, k - 1)] + of(s, k - 1).forward;
        // On the stage before, seen from the start of the first F here.
        auto const behind =
            s == 0 ? 0 : arrivals_[at(s - 1, k)] + down(k, s - 1, s) - down(0, s - 1, s);
        arrivals_.push_back(std::max(before, behind));
      }
  }

  // While F runs, memory also holds what is fixed, its workspace, and its input and output.
  void find_room(problem const& problem, int rank) {
    bytes held = 0;
    bytes fixed = 0;
    for (int s : problem.placement().stages_of(rank)) fixed += problem.fixed_memory(s);
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
  std::int64_t step_ = 0;  // from one microbatch to the next in what follows; 0: all are alike
  std::vector<stage_terms> stages_;
  std::vector<pass_terms> times_;
  std::vector<ticks> down_;  // from the start of the first F, without waiting
  std::vector<ticks> up_;    // to the end of the last B, without waiting
  std::vector<ticks> pace_;  // the slowest F up to each stage, of microbatches that are alike
  // Of microbatches that differ.
  std::vector<pass_terms> sums_;
  std::vector<ticks> arrivals_;
  std::vector<pass_terms> least_;       // by stage
  std::vector<ticks> longest_forward_;  // by stage
};

}  // namespace zbpp::detail
