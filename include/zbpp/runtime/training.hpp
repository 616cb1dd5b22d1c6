// SPDX-License-Identifier: Apache-2.0
//
// How a pipeline trains: how its optimizer steps are taken (clipping, loss scaling, learning rate,
// accumulation, when validation afterwards pays), and what a rank does while it waits.
// `training_state` is what has to survive a restart.
#pragma once

#include <zbpp/runtime/pass_context.hpp>

#include <cstdint>
#include <functional>

namespace zbpp {

/// Says how the loss is scaled, so that small gradients survive in fp16. Scales are powers of two,
/// so they change no bit of a gradient that stays in range.
struct loss_scaling {
  double initial = 1;                ///< scale of the first step
  std::int64_t growth_interval = 0;  ///< finite steps after which the scale doubles; 0: never
  double largest = 0x1p24;           ///< most that it grows to
  double smallest = 1;               ///< least that it halves to when a gradient is not finite
};

/// Says when a pipeline stops to step before it knows the norm: while steps are amended often, that
/// costs more than it gains.
struct validation_window {
  int steps = 16;        ///< the last steps that are looked at
  int most_amended = 3;  ///< with more of them amended, ranks wait for the norm
};

/// Says when ranks take optimizer steps without agreeing on the norm: while it is far below the
/// limit, all but every `every`-th one.
struct agreement_interval {
  /// Optimizer steps from one that ranks agree on to the next; 1: ranks agree on every step.
  int every = 1;
  /// The norm is far below as long as the last one that ranks agreed on is less than this part of
  /// `clip`, above 0 and at most 1.
  double share = 0.5;
};

/// Says what a rank does while the message of its next pass is not there. Losses and weights stay
/// the same to the bit, and ranks may differ in it.
struct stall_options {
  /// It runs the next W of one of its stages, in front of its place in the program, where it
  /// expects the W to end in time. It learns from the steps before when messages arrive and how
  /// long W take, so the first step moves none.
  bool runs_w = false;
  /// The share of its own time by which a W may end later than the message is expected, from 0.
  double overrun = 0;
};

namespace detail {

/// The learning rate by default.
struct default_rate {
  double operator()(std::int64_t) const noexcept { return 1e-3; }
};

}  // namespace detail

/// Says how a pipeline trains. An option that a plan, a stage or a backend cannot follow is refused
/// when the pipeline is made; docs/optimizer.md has a table of those about optimizer steps.
struct training_options {
  double clip = 0;  ///< most that the norm of all gradients may be; 0 clips nothing
  /// Gives the learning rate of an optimizer step, by the steps taken before; the same on all
  /// ranks, which call it on their own threads. Without one it is 0.001.
  std::function<double(std::int64_t)> learning_rate = detail::default_rate{};
  /// Called when the gradients of a stage are complete, before they are measured, on the rank of
  /// the stage: what is added to them here counts, such as those of other replicas. It may block as
  /// long as that does not wait for another rank of this pipeline.
  std::function<void(int stage, pass_context)> on_gradients_ready{};
  loss_scaling scaling{};
  int accumulate = 1;          ///< steps whose gradients are added up for one optimizer step
  validation_window window{};  ///< of `post_validated` steps
  /// In a step without agreement each stage takes its gradients unclipped, and skips the step by
  /// itself if one of them is not finite. Which steps are without depends on `training_state`
  /// alone, so all ranks know.
  agreement_interval agreement{};
  stall_options on_stall{};  ///< needs ranks that wait on threads of their own, not on GPUs
  /// Whether replicas, and the members of a tensor group with layers that all of them have whole,
  /// compare weights before the first step and the first one after `resume`, so that none trains
  /// apart from the others. Reads each weight once, where the optimizer gives it.
  bool compares_weights = true;
};

namespace detail {

[[nodiscard]] inline bool has_learning_rate(training_options const& options) {
  return options.learning_rate.target<default_rate>() == nullptr;
}

}  // namespace detail

/// Holds what the next step depends on, besides weights and optimizers. Save it with them.
struct training_state {
  std::int64_t steps = 0;         ///< steps run; the next one has this number
  std::int64_t updates = 0;       ///< optimizer steps taken, skipped ones not counted
  double loss_scale = 0;          ///< 0: the initial one
  std::int64_t finite_steps = 0;  ///< since the scale changed
  std::uint64_t amended = 0;      ///< the last steps, the latest in the lowest bit: 1 if amended
  /// Steps whose gradients wait for an optimizer step; save these gradients, too, unless it is 0.
  std::int64_t accumulated = 0;
  std::int64_t unagreed = 0;  ///< optimizer steps to come on which ranks do not agree

  /// @return the state after the last optimizer step, from which an accumulation begins again, as
  ///         after a failure: its gradients are incomplete, so `skip` drops all of them
  [[nodiscard]] training_state at_last_update() const noexcept {
    auto earlier = *this;
    earlier.steps -= accumulated;
    earlier.accumulated = 0;
    return earlier;
  }

  friend bool operator==(training_state const&, training_state const&) = default;
};

/// Says how an optimizer step came out; the same on all ranks.
struct update_report {
  std::int64_t step = -1;          ///< number of the step
  double norm = 0;                 ///< of all gradients; not finite where one is not; 0 if unknown
  double coefficient = 1;          ///< by which they were multiplied
  double loss_scale = 1;           ///< that they were made with
  double learning_rate = 0;        ///< of the step
  bool is_update = false;          ///< false while gradients are accumulated, or without agreement
  bool is_agreed = false;          ///< ranks agreed on the norm of this optimizer step
  bool is_skipped = false;         ///< because a gradient was not finite
  bool is_post_validated = false;  ///< ranks went on before the norm was known
  bool is_amended = false;         ///< and had to go back
};

}  // namespace zbpp
