// SPDX-License-Identifier: Apache-2.0
//
// A pipeline: a verified plan, the stages that do the work, and a backend that runs them, step
// after step. A program that `verify` refuses never runs.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/backend_link.hpp>
#include <zbpp/runtime/detail/callback.hpp>
#include <zbpp/runtime/detail/pipeline_setup.hpp>
#include <zbpp/runtime/detail/rethrow.hpp>
#include <zbpp/runtime/detail/running_call.hpp>
#include <zbpp/runtime/evaluation.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/run_options.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/started_step.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp {

/// Runs the steps of a plan; what a `pipeline` is on any backend.
///
/// One call at a time: one that comes while another runs, from a callback, a flow or another
/// thread, throws error (bad_argument) at once. docs/flows.md has a table of what is allowed when.
class pipeline_core {
 public:
  pipeline_core(pipeline_core const&) = delete;
  pipeline_core& operator=(pipeline_core const&) = delete;

  /// Runs the microbatches of an optimizer step, and the optimizer steps of stages with one.
  ///
  /// Blocks until the ranks of this process have stopped; their flows are destroyed and their
  /// buffers returned. Ranks elsewhere may still run. Allocates nothing but the first time.
  ///
  /// After a failure, a backend whose ranks all run in this process can step again (on GPUs, if
  /// CUDA can continue); the stages must first undo what W added up, or what an optimizer step
  /// changed. With one process per rank (`asio::tcp`, `nccl::ranks`) the run is over, and every
  /// later call throws the same failure.
  /// @throws error with the place of the first failure. If a pass threw an `error`, it is that one,
  ///         also one of a type of its own; anything else that was thrown is nested in an error
  ///         (pass_failed), and `std::rethrow_if_nested` throws it. Otherwise (wrong_flow,
  ///         wrong_size), or what failed in another process; see `failures()`
  step_result const& step();

  /// Runs steps one after another, and hands the result of each to `on_step`, in order.
  ///
  /// Where ranks agree on optimizer steps, a rank begins the next step when it is done with its own
  /// part of the last one; `on_step` is then called on the thread of a rank, while others go on.
  /// All is final when `run` returns or pauses. Otherwise it is as many calls of `step`.
  ///
  /// What `on_step` asks for happens at most two steps later, after the same step on all ranks,
  /// whichever of them asked. The run ends before if that many steps are not left.
  /// @param count  of steps, unless `on_step` or `on_pause` stops the run
  /// @param on_step  called with a `step_result const&`, which later steps overwrite; gives
  ///                 nothing or, on all ranks, an `after_step`. `state()` and `steps()` are those
  ///                 after that step then. What it throws ends the run as the failure of a rank
  /// @return the result of the last step
  /// @throws as `step`; error (bad_argument) unless `count` is at least 1
  template <std::invocable<step_result const&> OnStep>
  step_result const& run(std::int64_t count, OnStep on_step, run_options const& options = {});
  /// Runs steps one after another. @return the result of the last
  step_result const& run(std::int64_t count, run_options const& options = {}) {
    return run(
        count, [](step_result const&) {}, options);
  }

  /// Runs the forward passes only.
  ///
  /// A rank holds up to `evaluation_depth` messages of each channel; then it waits until the oldest
  /// was consumed (over TCP: has left), so that it needs what `peak_evaluation_memory` says. On
  /// GPUs what a rank sends stays in its memory until the end.
  /// @throws as `step`; error (wrong_flow) when a flow of the last stage reports no loss in F
  step_result const& evaluate() { return evaluate_for({}); }
  /// Runs the forward passes, and hands what the last stage sends to `on_output`.
  ///
  /// It is called right after each F of the last stage, on the thread of its rank: in the order of
  /// the program, and with one process per rank only in the process of the last stage.
  /// @param on_output  called with an `evaluation_output const&`; what it throws is a failure of
  ///                   that rank at that F
  /// @throws as `step`; error (wrong_flow) when a flow of the last stage sends nothing
  template <std::invocable<evaluation_output const&> OnOutput>
  step_result const& evaluate(OnOutput on_output) {
    return evaluate_for(detail::callback<evaluation_output>(on_output));
  }

  /// @return every failure of the last step, the first one first; empty when it succeeded
  /// @throws error (bad_argument) while a call runs that does not pause
  [[nodiscard]] std::vector<failure> const& failures() const {
    calls_.check_idle("failures()");
    return failures_;
  }
  /// @return how many steps were completed, since `resume` counted from there; in `on_step` the one
  ///         that it is called for is among them
  /// @throws error (bad_argument) while a call runs, except in its callbacks
  [[nodiscard]] std::int64_t steps() const {
    calls_.check_state("steps()");
    return state_.steps;
  }
  /// @return what the next step depends on besides weights and optimizers; to be saved with them
  /// @throws as `steps`
  [[nodiscard]] training_state const& state() const {
    calls_.check_state("state()");
    return state_;
  }
  /// Runs another plan from the next step on, with the same stages, which may change ranks, and the
  /// training state; with one process per rank a collective call, and stages keep their ranks.
  /// Memory and connections of the plan before are given back first. Losses and weights are to the
  /// bit those of one plan where W of each stage stays in ascending microbatch, as in every plan of
  /// the library.
  /// @throws as the constructor, when the plan cannot run; then the one before goes on. With one
  ///         process per rank the run is over, as after each failure
  void take(plan const& next);
  /// @return whether there is a plan: not where `take` could run neither another nor the one before
  [[nodiscard]] bool has_plan() const noexcept { return ready_ != nullptr; }

  /// Continues a training from where `state()` was taken.
  /// @throws error (bad_argument) when no training can have that state
  void resume(training_state const& state);
  [[nodiscard]] plan const& planned() const;
  /// @return what the first rank here knows of its grid, for collective calls between two steps
  /// @throws as `failures`
  [[nodiscard]] rank_grid& grid();
  /// @return what a rank's arena holds, and the most it held in the last step
  /// @throws error (bad_argument) when the rank does not run in this process, or while a call runs
  ///         that does not pause
  [[nodiscard]] arena_usage const& memory(int rank) const;

 protected:
  using backend_link = detail::backend_link;

  pipeline_core(
      std::unique_ptr<backend_link> backend,
      std::vector<stage_ref> stages,
      plan const& planned,
      training_options const& options);
  ~pipeline_core();

  started_step begin_step();

 private:
  friend class started_step;
  using program_run = detail::program_run;
  using step_callback = detail::callback<step_result, after_step>;
  using output_callback = detail::callback<evaluation_output>;
  // What a run calls for each step.
  struct step_calls {
    step_callback on_step{};
    bool decides = false;  // it says what comes next
  };
  struct ready_plan;

  [[nodiscard]] ready_plan& ready() const;
  [[nodiscard]] int first_rank() const;
  void check_run(std::int64_t count, run_options const& options, bool decides) const;
  step_result const& train(std::int64_t count, step_calls calls, run_options const& options);
  after_step train_until(std::int64_t end, step_calls calls);
  after_step decide(after_step asked, bool is_before_pause);
  after_step ask_replicas(after_step asked);
  void share(step_result& result);
  after_step pause(pause_call const& on_pause);
  step_result const& evaluate_for(output_callback on_output);
  void execute(program_run& of, std::int64_t count, step_callback on_step = {});
  [[nodiscard]] detail::run_statement statement_of(program_run const& of, std::int64_t count);
  void compare_with_grid(detail::run_statement const& stated);
  after_step call_back(step_callback on_step, step_result const& result);
  [[noreturn]] void report(program_run const& of);
  [[noreturn]] void report_callback();
  step_result const& result_of(std::int64_t ticket);
  void finish_oldest();
  void finish_all();
  [[nodiscard]] std::size_t turn_of(std::int64_t ticket) const noexcept;

  std::unique_ptr<backend_link> backend_;
  std::vector<stage_ref> stages_;  // in the order of the model
  training_options options_;
  detail::running_call calls_;
  training_state state_;
  bool has_compared_weights_ = false;     // since the weights were loaded
  std::int64_t evaluations_ = 0;          // since the last step
  detail::run_statement asked_steps_;     // by the user, in the call that runs
  after_step asked_ = after_step::go_on;  // of this process, and not told to others yet
  bool has_proposed_ = false;
  output_callback outputs_;  // of the evaluation that runs
  std::unique_ptr<ready_plan> ready_;
  std::vector<failure> failures_;
  detail::step_queue started_;
};

/// Runs the steps of a plan on a backend.
/// @tparam Backend  `threads`, `virtual_time` or a component's, such as `asio::tcp`
template <backend Backend>
class pipeline : public pipeline_core {
 public:
  /// Verifies the plan and gets everything ready.
  ///
  /// @param stages  the stages of the ranks that run in this process (most backends: of all), in
  ///                the order of the model: a container of one stage type or of `stage_ref`. They
  ///                must outlive the pipeline. Ranks run at once, so one object may serve two
  ///                stages of one rank only.
  /// @param options  of optimizer steps, for stages with an `optimizer`, and of ranks that wait
  /// @throws error (refused_program) with every fault that `verify` finds; (bad_argument) unless
  ///         there are as many as stages; what the backend throws. With one process per rank all
  ///         ranks throw what is wrong with the stages or options of one, and the run is over
  template <class Stages>
  pipeline(
      plan const& planned, Backend backend, Stages&& stages, training_options const& options = {})
      : pipeline_core(
            std::make_unique<detail::backend_of<Backend>>(std::move(backend)),
            detail::refer_to<Stages>(stages),
            planned,
            options) {}

  /// Begins a step after those that are under way, and returns.
  ///
  /// Where as many are under way as `steps_at_once` of the backend says, it waits for the oldest
  /// first. A step that fails takes those after it with it: `get` throws the failure for each.
  /// `step`, `run`, `evaluate` and `resume` first wait for all; so does the destructor.
  /// @return the step, whose `get` gives the result
  /// @throws as `step`, for what fails while it is issued or has failed in a step before; error
  ///         (bad_argument) where stages have optimizers, for which the host waits
  template <starts_steps = Backend>  // as clang 14 overlooks a requires-clause in `template class`
  started_step step_async() {
    return begin_step();
  }
};

template <class Backend, class Stages>
pipeline(plan const&, Backend, Stages&&) -> pipeline<Backend>;
template <class Backend, class Stages>
pipeline(plan const&, Backend, Stages&&, training_options const&) -> pipeline<Backend>;

template <std::invocable<step_result const&> OnStep>
step_result const& pipeline_core::run(
    std::int64_t count, OnStep on_step, run_options const& options) {
  using given = std::invoke_result_t<OnStep&, step_result const&>;
  static_assert(
      std::is_void_v<given> || std::same_as<given, after_step>,
      "what run() calls for each step gives nothing, or a zbpp::after_step");
  auto const call = calls_.begin("run()");
  check_run(count, options, !std::is_void_v<given>);
  location const here{.rank = first_rank()};
  auto ask = [&](step_result const& result) -> after_step {
    auto const give = [&] { return on_step(result); };
    if constexpr (std::is_void_v<given>) {
      detail::named_call("on_step", here, give);
      return after_step::go_on;
    } else {
      auto const next = detail::named_call("on_step", here, give);
      detail::require(
          next != after_step::pause || options.on_pause,
          "on_step asks the run to pause, and run_options::on_pause is not set; say what the run "
          "does when it pauses");
      return next;
    }
  };
  return train(count, {step_callback(ask), !std::is_void_v<given>}, options);
}

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/pipeline.ipp>
#endif
