// SPDX-License-Identifier: Apache-2.0
//
// A pipeline: a verified plan, the stages that do the work, and a backend that runs them, step
// after step. A program that `verify` refuses never runs.
#pragma once

#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/callback.hpp>
#include <zbpp/runtime/detail/pipeline_setup.hpp>
#include <zbpp/runtime/detail/program_run.hpp>
#include <zbpp/runtime/detail/rethrow.hpp>
#include <zbpp/runtime/detail/step_agreements.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/evaluation.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/started_step.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

/// Runs the steps of a plan.
/// @tparam Backend  `threads` or `virtual_time`, or one of a component (`asio::tcp`)
template <backend Backend>
class pipeline {
 public:
  /// Verifies the plan and gets everything ready.
  ///
  /// @param stages  the stages of the ranks that run in this process (most backends: of all), in
  ///                the order of the model: a container of one stage type or of `stage_ref`. They
  ///                must outlive the pipeline. Ranks run at once, so one object may serve two
  ///                stages of one rank only.
  /// @throws error (refused_program) with every fault that `verify` finds; (bad_argument) unless
  ///         there are as many as stages; what the backend throws
  /// @param options  of optimizer steps, for stages with an `optimizer`
  template <class Stages>
  pipeline(
      plan const& planned, Backend backend, Stages&& stages, training_options const& options = {})
      : pipeline(detail::refer_to<Stages>(stages), planned, std::move(backend), options) {}
  pipeline(pipeline const&) = delete;
  pipeline& operator=(pipeline const&) = delete;
  ~pipeline();

  /// Runs one optimizer step's worth of microbatches, and the optimizer steps of stages that have
  /// one.
  ///
  /// Blocks until the ranks of this process have stopped; their flows are destroyed and their
  /// buffers returned. Ranks in other processes may still be running. Allocates nothing after the
  /// first time.
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

  /// Begins a step behind those that are under way, and returns.
  ///
  /// Where as many are under way as `steps_at_once` of the backend says, it waits for the oldest
  /// first. A step that fails takes those behind it with it: `get` throws the failure for each.
  /// `step`, `run`, `evaluate` and `resume` first wait for all; so does the destructor.
  /// @return the step, whose `get` gives the result
  /// @throws as `step`, for what fails while it is issued or has failed in a step before; error
  ///         (bad_argument) where stages have optimizers, for which the host waits
  started_step<pipeline> step_async()
    requires detail::starts_steps<Backend>;

  /// Runs steps one after another, and hands the result of each to `on_step`, in order.
  ///
  /// Where ranks agree on optimizer steps, a rank begins the next step when it is done with its own
  /// part of the last one; `on_step` is then called on the thread of a rank, while others go on.
  /// All is final when `run` returns. Otherwise this is as many calls of `step`.
  /// @param on_step  called with a `step_result const&`, which later steps overwrite; what it
  ///                 throws ends the run as the failure of a rank
  /// @throws as `step`; error (bad_argument) unless `count` is at least 1
  template <std::invocable<step_result const&> OnStep>
  step_result const& run(std::int64_t count, OnStep on_step);
  /// Runs steps one after another. @return the result of the last
  step_result const& run(std::int64_t count) {
    return run(count, [](step_result const&) {});
  }

  /// Runs the forward passes only.
  ///
  /// A rank holds up to `evaluation_depth` messages of each channel; then it waits until the oldest
  /// was consumed (over TCP: has left), so that it needs what `peak_evaluation_memory` says. On
  /// GPUs what a rank sends stays in its memory until the end.
  /// @throws as `step`
  step_result const& evaluate();
  /// Runs the forward passes, and hands what the last stage sends to `on_output`.
  ///
  /// It is called right after each F of the last stage, on the thread of its rank: in the order of
  /// the program, and with one process per rank only in the process of the last stage.
  /// @param on_output  called with an `evaluation_output const&`; what it throws is a failure of
  ///                   that rank at that F
  /// @throws as `step`; error (wrong_flow) when a flow of the last stage sends nothing
  template <std::invocable<evaluation_output const&> OnOutput>
  step_result const& evaluate(OnOutput on_output);

  /// @return every failure of the last step, the first one first; empty when it succeeded
  [[nodiscard]] std::vector<failure> const& failures() const noexcept { return failures_; }
  /// @return how many steps were completed, since `resume` counted from there
  [[nodiscard]] std::int64_t steps() const noexcept { return state_.steps; }
  /// @return what the next step depends on besides weights and optimizers; to be saved with them
  [[nodiscard]] training_state const& state() const noexcept { return state_; }
  /// Continues a training from where `state()` was taken.
  void resume(training_state const& state);
  /// @return the plan it runs
  [[nodiscard]] plan const& planned() const noexcept { return plan_; }
  /// @return what a rank's arena holds, and the most it held in the last step
  /// @throws error (bad_argument) when the rank does not run in this process
  [[nodiscard]] arena_usage const& memory(int rank) const;

 private:
  friend class started_step<pipeline>;
  using program_run = detail::program_run<Backend>;
  using step_callback = detail::callback<step_result>;
  using output_callback = detail::callback<evaluation_output>;

  pipeline(
      std::vector<stage_ref> const& stages,
      plan const& planned,
      Backend backend,
      training_options const& options);

  [[nodiscard]] std::unique_ptr<program_run> make_run(program code, output_callback const* outputs);
  step_result const& train(std::int64_t count, step_callback told);
  step_result const& evaluate_for(output_callback told);
  void run(program_run& what, std::int64_t count, step_callback told = {});
  void tell(step_callback told, step_result const& result);
  void note_failures(program_run const& what);
  [[noreturn]] void report(program_run const& what);
  step_result const& result_of(std::int64_t ticket);
  void finish_oldest();
  void finish_all();
  [[nodiscard]] std::size_t turn_of(std::int64_t ticket) const noexcept {
    return detail::index(ticket) % training_->results.size();
  }

  plan plan_;
  typename Backend::executor executor_;
  std::vector<stage_ref> stages_;  // rank after rank
  std::vector<rank_memory> memory_;
  training_state state_;
  detail::step_agreements agreements_;
  output_callback outputs_;  // of the evaluation that runs
  std::unique_ptr<program_run> training_;
  std::unique_ptr<program_run> evaluation_;
  std::vector<failure> failures_;
  detail::step_queue started_;
};

template <class Backend, class Stages>
pipeline(plan const&, Backend, Stages&&) -> pipeline<Backend>;
template <class Backend, class Stages>
pipeline(plan const&, Backend, Stages&&, training_options const&) -> pipeline<Backend>;

template <backend Backend>
pipeline<Backend>::pipeline(
    std::vector<stage_ref> const& stages,
    plan const& planned,
    Backend backend,
    training_options const& options)
    : plan_(detail::verified(planned, detail::devices_of(backend, planned.problem().ranks()))),
      executor_(backend, plan_),
      stages_(detail::by_rank(stages, plan_.problem().placement(), executor_.ranks())),
      memory_(executor_.ranks().size()),
      agreements_(plan_.program(), plan_.problem(), executor_.ranks(), stages_, options) {
  for (std::size_t here = 0; here < memory_.size(); ++here)
    memory_[here].buffers = executor_.make_memory(executor_.ranks()[here]);
  if constexpr (Backend::reserves_memory)
    detail::reserve_peaks(
        plan_, detail::devices_of(backend, plan_.problem().ranks()), executor_.ranks(), memory_);
  training_ = make_run(plan_.program(), nullptr);
  executor_.warm_up(training_->engines);
}

template <backend Backend>
pipeline<Backend>::~pipeline() {
  try {
    finish_all();
  } catch (...) {  // nobody has asked for those steps
  }
  // Before its connections close, so that other processes know why they do.
  if constexpr (requires { executor_.leave(); }) executor_.leave();
}

template <backend Backend>
step_result const& pipeline<Backend>::step() {
  return train(1, {});
}

template <backend Backend>
template <std::invocable<step_result const&> OnStep>
step_result const& pipeline<Backend>::run(std::int64_t count, OnStep on_step) {
  detail::require(count >= 1, "run() takes a number of steps from 1");
  return train(count, step_callback(on_step));
}

template <backend Backend>
step_result const& pipeline<Backend>::train(std::int64_t count, step_callback told) {
  finish_all();
  training_->asked = {.first = state_.steps, .count = count};
  if (multi_step_transport<typename Backend::transport_type> && training_->agreements != nullptr) {
    run(*training_, count, told);
    state_ = agreements_.of(0)->state();
    return training_->result_of(state_.steps - 1);
  }
  for (auto& result = training_->results.front(); count > 0; --count) {
    run(*training_, 1);
    ++state_.steps;
    if (agreements_.of(0) != nullptr) state_ = agreements_.of(0)->state();
    if (told) tell(told, result);
  }
  return training_->results.front();
}

template <backend Backend>
void pipeline<Backend>::resume(training_state const& state) {
  finish_all();
  state_ = state;
  agreements_.resume(state);
}

template <backend Backend>
step_result const& pipeline<Backend>::evaluate() {
  return evaluate_for({});
}

template <backend Backend>
template <std::invocable<evaluation_output const&> OnOutput>
step_result const& pipeline<Backend>::evaluate(OnOutput on_output) {
  return evaluate_for(output_callback(on_output));
}

template <backend Backend>
step_result const& pipeline<Backend>::evaluate_for(output_callback told) {
  finish_all();
  if (evaluation_ == nullptr) evaluation_ = make_run(forward_only(plan_.program()), &outputs_);
  outputs_ = told;
  run(*evaluation_, 1);
  return evaluation_->results.front();
}

template <backend Backend>
arena_usage const& pipeline<Backend>::memory(int rank) const {
  auto const all = executor_.ranks();
  auto const found = std::ranges::find(all, rank);
  detail::require(found != all.end(), "memory() takes a rank that runs in this process");
  return memory_[detail::index(found - all.begin())].buffers.usage();
}

template <backend Backend>
std::unique_ptr<detail::program_run<Backend>> pipeline<Backend>::make_run(
    program code, output_callback const* outputs) {
  return std::make_unique<program_run>(
      executor_, plan_.problem(), std::move(code), stages_, memory_, agreements_, outputs);
}

template <backend Backend>
void pipeline<Backend>::run(program_run& what, std::int64_t count, step_callback told) {
  failures_.clear();
  executor_.start_run();
  what.begin(executor_, state_.steps, count, told);
  executor_.run(what.engines, *what.transport, what.status);
  if (what.status.has_failed())
    for (auto& e : what.engines) e.abandon();
  what.transport->drain();
  if (!what.status.has_failed()) return;
  note_failures(what);
  report(what);
}

// Where ranks agree, an engine calls; what is thrown is a failure of its rank there, too.
template <backend Backend>
void pipeline<Backend>::tell(step_callback told, step_result const& result) {
  try {
    told(result);
  } catch (...) {
    auto const rank = executor_.ranks().front();
    failures_.push_back({{.rank = rank}, {}, std::current_exception()});
  }
  if (failures_.empty()) return;
  executor_.settle(failures_);
  detail::rethrow_located(failures_.front());
}

// Notes what went wrong in this process, the first failure first.
template <backend Backend>
void pipeline<Backend>::note_failures(program_run const& what) {
  for (auto const& e : what.engines)
    if (e.what_failed().exception) failures_.push_back(e.what_failed());
  // The subrange that std::ranges gives does not compile with clang 14.
  std::stable_partition(failures_.begin(), failures_.end(), [&](failure const& f) {
    return f.location.rank == what.status.first();
  });
}

// Settles what was noted with other processes, and throws the first failure.
template <backend Backend>
void pipeline<Backend>::report(program_run const& what) {
  if (&what == training_.get())
    agreements_.settle([&](std::size_t here, auto const& work) {
      detail::run_at(executor_, executor_.ranks()[here], memory_[here].buffers, work);
    });
  if (agreements_.of(0) != nullptr) state_ = agreements_.of(0)->state();
  executor_.settle(failures_);
  detail::rethrow_located(failures_.front());
}

}  // namespace zbpp

#include <zbpp/runtime/impl/pipeline_async.ipp>
