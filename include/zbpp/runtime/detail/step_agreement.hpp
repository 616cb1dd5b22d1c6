// SPDX-License-Identifier: Apache-2.0
//
// What one rank does between its last weight gradient and the moment at which its optimizer steps
// are final. The states of gradients go from the first rank to the last, which judges them; the
// verdict goes back from the last rank to the first.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/member_agreement.hpp>
#include <zbpp/runtime/detail/run_terms.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/group.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/run_options.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/training.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Says how far an instruction of the agreement came.
enum class agreement_progress : std::uint8_t {
  waits,     ///< for the state that `awaited()` brings
  done,      ///< the rank goes on
  goes_back  ///< the step before was amended: what this step has run so far is void
};

/// The decision of the last rank on a step.
struct step_decision {
  gradient_verdict verdict;
  after_step next = after_step::go_on;  ///< the most that a rank has asked for
  bool nobody_deferred = true;  ///< no rank waited because of what it knew before the verdict
};

/// Takes the part of one rank in the optimizer steps of a run.
class step_agreement {
 public:
  /// Says how far the optimizer of a stage is with the step of this rank.
  enum class progress : std::uint8_t { none, held, early, final };
  /// One stage of the rank; frozen where its optimizer is null.
  struct stage_optimizer {
    int stage = 0;
    zbpp::optimizer* optimizer = nullptr;
    bool counts_tied = true;     ///< the norm counts its first tied layer
    bool steps_at_once = false;  ///< it does not wait for the norm
    progress step = progress::none;
    bool is_finite = true;  ///< its gradients of this step, as far as they were measured
    /// The states of its gradients, where they are known without measuring; else null.
    std::vector<gradient_state> const* states = nullptr;
  };

  /// Says which step a rank validates, and what those before it do.
  enum class validation : std::uint8_t {
    own_step,
    own_step_behind_others,  ///< unlike some ranks before it, which go on
    step_before,             ///< like all others, so that all may have to go back
    after_others,  ///< the step before, unlike the last rank: all stages of this one step at once
  };

  /// @param links  by which ranks tell each other
  /// @param tells_next_step  whether the rank before goes on, and takes the verdict there
  step_agreement(
      int rank,
      state_map const& links,
      validation validates,
      bool tells_next_step,
      std::vector<stage_optimizer> chunks,
      training_options const& options,
      training_state const& state);

  /// Lets the members of a tensor group judge the gradients of all; before the first step.
  void join(group& members);
  /// Gets ready for the steps of a run; what was asked for before, and not done, still is.
  void begin_run() noexcept {
    next_ = coming_ = after_step::go_on;
    holds_verdict_ = false;
  }
  /// Asks all ranks for something that the run does next; called on the thread of this rank.
  void request(after_step next) noexcept { request_ = std::max(request_, next); }
  /// Asks for nothing any more; between runs.
  void forget_request() noexcept { request_ = after_step::go_on; }
  /// @return what this rank asks for, as far as no ruling has it
  [[nodiscard]] after_step request() const noexcept { return request_; }
  /// Has this rank ask in this step for what it and its replicas have asked for, so that all of
  /// them stop after the same step; before `reduce_norm`.
  void set_group_request(after_step asked) noexcept { asked_alike_ = asked; }
  /// @return what a run does after this step, on all ranks; `go_on` until one asks for more
  [[nodiscard]] after_step next() const noexcept { return next_; }

  /// Continues from a state; between runs.
  void resume(training_state const& state);
  /// Begins a step. The last one of a run has no step after it that could validate it, so its ranks
  /// wait for the norm.
  void begin_step(bool is_last) noexcept {
    is_last_step_ = is_last || coming_ != after_step::go_on;
    before_ = state_;
  }
  /// Counts the step that was begun last as not run, whatever optimizers have done in it.
  void count_as_not_run() { resume(before_); }

  /// Says where the states of the gradients of a stage are known; null: they are measured.
  void use_states(int chunk, std::vector<gradient_state> const* states) noexcept {
    chunks_[index(chunk)].states = states;
  }
  /// Notes that the gradients of a stage are complete, and tells whoever asked to know.
  void complete_gradients(int chunk, pass_context ctx) const;
  /// @return whether it has a verdict for the rank before that belongs to the step that begins
  [[nodiscard]] bool holds_verdict() const noexcept { return holds_verdict_; }
  /// Tells it; after `begin_step`.
  void tell_held_verdict(state_link& link, ticks arrival);
  /// Runs as much of `reduce_norm` or `validate` as can be.
  /// @param arrival  when a state that is sent now counts as arrived
  agreement_progress run(instruction_kind kind, state_link& link, pass_context ctx, ticks arrival);
  /// @return the channel by which `run` needs a state next; none where it does not
  [[nodiscard]] int awaited(instruction_kind kind) const noexcept;
  /// @return whether a channel brings what all ranks know, rather than those before
  [[nodiscard]] bool brings_verdict(int channel) const noexcept {
    return channel != state_map::none && channel == from_next_;
  }
  [[nodiscard]] bool accumulates() const noexcept {
    return state_.accumulated + 1 < options_.accumulate;
  }
  /// Ends the program of a step: the step is judged by now, or its verdict is pending.
  void end_step();
  /// @return how a stage steps that has an `update`, for which ranks do not agree
  [[nodiscard]] step_settings settings() { return settings(ruling_.verdict, true); }
  /// Runs the optimizer step of a stage, as far as this step has one now.
  void step(int chunk, pass_context ctx);

  /// Ends the step of this rank after a failure: follows the ruling where some rank knows it, and
  /// otherwise goes back to before the step; gradients stay then.
  void settle(step_decision const* ruling, pass_context ctx);
  /// Forgets how far the rank is with the step, whatever optimizers have done.
  void forget_step() noexcept;

  /// @return the ruling on a step, where this rank has it; else null
  [[nodiscard]] step_decision const* ruling_on(std::int64_t step) const noexcept {
    return ruled_step_ == step ? &ruling_ : nullptr;
  }
  [[nodiscard]] bool steps_early() const noexcept { return will_step_early_; }
  [[nodiscard]] bool is_pending() const noexcept { return is_pending_; }
  /// @return how the step came out that this rank has done with last
  [[nodiscard]] update_report const& report() const noexcept { return report_; }
  /// @return the last step that no rank is in; the one before the report's, if not agreed on
  [[nodiscard]] std::int64_t last_over() const noexcept {
    return was_unagreed_ ? report_.step - 1 : report_.step;
  }
  [[nodiscard]] training_state const& state() const noexcept { return state_; }
  /// @return what all ranks need alike in the step that has begun
  /// @throws what `learning_rate` does
  [[nodiscard]] step_terms terms();
  [[nodiscard]] double const& loss_scale() const noexcept { return state_.loss_scale; }

 private:
  // What an instruction does next.
  enum class phase : std::uint8_t { measure, prefix, verdict };

  // What ranks tell the next, after their terms: one entry per layer, after a first one whose
  // `layer` counts the ranks that wait because of what they know, and whose `stage` is the
  // `after_step` that they ask for.
  struct entry {
    double sum_of_squares;  // infinite where a gradient is not finite
    std::int32_t stage;
    std::int32_t layer;
  };

  [[nodiscard]] bool is_first() const noexcept { return rank_ == 0; }
  [[nodiscard]] bool is_last() const noexcept { return to_next_ == state_map::none; }
  [[nodiscard]] bool must_wait() const noexcept;
  [[nodiscard]] bool is_late() const noexcept {
    return validates_ == validation::step_before || validates_ == validation::after_others;
  }
  [[nodiscard]] bool may_go_back() const noexcept { return validates_ == validation::step_before; }
  // Whether `validate` has a verdict to bring.
  [[nodiscard]] bool awaits_verdict() const noexcept {
    return is_late() ? is_pending_ : !is_unagreed_;
  }

  void measure(pass_context ctx);
  // Asks for the learning rate of a step once, so that all of the step has the same.
  [[nodiscard]] double rate();
  void absorb(state_link& link);
  void hand_on(state_link& link, ticks arrival);
  void receive_ruling(state_link& link, ticks arrival);
  void send_ruling(state_link& link, ticks arrival);
  [[nodiscard]] gradient_verdict judge_known();
  [[nodiscard]] step_settings settings(gradient_verdict const& verdict, bool is_final);
  void take_final_step(stage_optimizer& chunk, pass_context ctx);
  [[nodiscard]] bool may_skip_agreement(gradient_verdict const& verdict) const noexcept;
  void forget_progress() noexcept;
  // Makes the step of every stage final, and closes it. Returns whether early steps were amended.
  bool follow_ruling(pass_context ctx);
  void close(bool was_amended);
  // Changes the loss scale after an optimizer step that ranks agreed on.
  void scale_loss(bool was_finite);

  int rank_;
  // Channels from and to the ranks before and after.
  int from_previous_;
  int to_previous_;
  int from_next_;
  int to_next_;
  validation validates_;
  bool tells_next_step_;
  std::vector<stage_optimizer> chunks_;
  training_options options_;
  training_state state_;
  training_state before_;  // the step that was begun last

  after_step request_ = after_step::go_on;  // of this rank, until a ruling has it
  std::optional<after_step> asked_alike_;   // by this rank and its replicas; nothing without those
  after_step next_ = after_step::go_on;
  after_step coming_ = after_step::go_on;  // after one more step, which some ranks have begun

  phase phase_ = phase::measure;
  bool is_last_step_ = false;
  bool waits_ = true;  // for the verdict, before it steps
  bool will_step_early_ = false;
  bool is_pending_ = false;  // the verdict on the step before
  bool holds_verdict_ = false;
  bool is_unagreed_ = false;   // ranks do not agree on the step that is not closed
  bool was_unagreed_ = false;  // nor on the one before
  bool has_rate_ = false;      // of the step that is not closed
  double rate_ = 0;
  step_decision ruling_;
  std::int64_t ruled_step_ = -1;  // on which the ruling is; -1: there is none
  update_report report_;
  member_agreement members_;
  after_step asked_ = after_step::go_on;  // of the members, for this step
  std::vector<layer_gradients> layers_;   // of the stages of this rank
  std::vector<entry> own_;
  std::vector<entry> known_;            // of the ranks up to this one
  std::vector<gradient_state> states_;  // of layers, for a moment
  std::vector<std::byte> bytes_;
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/step_agreement.ipp>
#endif
