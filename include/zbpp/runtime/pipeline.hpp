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
#include <zbpp/runtime/detail/grid_agreement.hpp>
#include <zbpp/runtime/detail/pipeline_setup.hpp>
#include <zbpp/runtime/detail/program_run.hpp>
#include <zbpp/runtime/detail/rethrow.hpp>
#include <zbpp/runtime/detail/running_call.hpp>
#include <zbpp/runtime/detail/step_agreements.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/evaluation.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/rank_grid.hpp>
#include <zbpp/runtime/run_options.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/started_step.hpp>
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

namespace detail {

template <backend Backend>
class plan_runner;

}  // namespace detail

/// Runs the steps of a plan.
///
/// One call at a time: one that comes while another runs, from a callback, a flow or another
/// thread, throws error (bad_argument) at once. docs/flows.md has a table of what is allowed when.
/// @tparam Backend  `threads`, `virtual_time` or a component's, such as `asio::tcp`
template <backend Backend>
class pipeline {
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
      : pipeline(detail::refer_to<Stages>(stages), planned, std::move(backend), options) {}
  pipeline(pipeline const&) = delete;
  pipeline& operator=(pipeline const&) = delete;
  ~pipeline();

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

  /// Begins a step after those that are under way, and returns.
  ///
  /// Where as many are under way as `steps_at_once` of the backend says, it waits for the oldest
  /// first. A step that fails takes those after it with it: `get` throws the failure for each.
  /// `step`, `run`, `evaluate` and `resume` first wait for all; so does the destructor.
  /// @return the step, whose `get` gives the result
  /// @throws as `step`, for what fails while it is issued or has failed in a step before; error
  ///         (bad_argument) where stages have optimizers, for which the host waits
  template <starts_steps = Backend>  // as clang 14 overlooks a requires-clause in `template class`
  started_step<pipeline> step_async();

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
  /// Continues a training from where `state()` was taken.
  /// @throws error (bad_argument) when no training can have that state
  void resume(training_state const& state);
  [[nodiscard]] plan const& planned() const noexcept { return plan_; }
  /// @return what the first rank here knows of its grid, for collective calls between two steps
  /// @throws as `failures`
  [[nodiscard]] rank_grid& grid() {
    calls_.check_idle("grid()");
    return detail::grid_of<Backend>(executor_, executor_.ranks().front());
  }
  /// @return what a rank's arena holds, and the most it held in the last step
  /// @throws error (bad_argument) when the rank does not run in this process, or while a call runs
  ///         that does not pause
  [[nodiscard]] arena_usage const& memory(int rank) const;

 private:
  friend class started_step<pipeline>;
  friend class detail::plan_runner<Backend>;
  using program_run = detail::program_run<Backend>;
  using step_callback = detail::callback<step_result, after_step>;
  using output_callback = detail::callback<evaluation_output>;
  // What a run calls for each step.
  struct step_calls {
    step_callback on_step{};
    bool decides = false;  // it says what comes next
  };

  pipeline(
      std::vector<stage_ref> const& stages,
      plan const& planned,
      Backend backend,
      training_options const& options);

  [[nodiscard]] std::unique_ptr<program_run> make_run(program code, output_callback const* outputs);
  step_result const& train(std::int64_t count, step_calls calls, run_options const& options);
  after_step train_until(std::int64_t end, step_calls calls);
  after_step decide(after_step asked, bool is_before_pause);
  after_step ask_replicas(after_step asked);
  [[nodiscard]] bool shares_losses() const noexcept;
  void share(step_result& result);
  after_step pause(pause_call const& on_pause);
  step_result const& evaluate_for(output_callback on_output);
  void execute(program_run& of, std::int64_t count, step_callback on_step = {});
  [[nodiscard]] detail::run_statement statement_of(program_run const& of, std::int64_t count);
  void compare_with_grid(detail::run_statement const& stated);
  // Calls `work(here, rank, stages, grid)` for each rank of this process.
  template <class Work>
  void for_each_rank(Work const& work) {
    auto left = std::span<stage_ref const>(stages_);
    for (std::size_t here = 0; here < memory_.size(); ++here) {
      int const rank = executor_.ranks()[here];
      auto const chunks = plan_.problem().placement().stages_of(rank).size();
      work(here, rank, left.first(chunks), detail::grid_of<Backend>(executor_, rank));
      left = left.subspan(chunks);
    }
  }
  after_step call_back(step_callback on_step, step_result const& result);
  void note_failures(program_run const& of);
  [[noreturn]] void report(program_run const& of);
  [[noreturn]] void report_callback();
  step_result const& result_of(std::int64_t ticket);
  void finish_oldest();
  void finish_all();
  [[nodiscard]] std::size_t turn_of(std::int64_t ticket) const noexcept {
    return detail::index(ticket) % training_->results.size();
  }

  plan plan_;
  detail::running_call calls_;
  typename Backend::executor executor_;
  std::vector<stage_ref> stages_;  // rank after rank
  std::vector<rank_memory> memory_;
  stall_options on_stall_;
  bool compares_weights_;
  training_state state_;
  // With those of the ranks that its ranks wait for.
  std::vector<std::vector<std::byte>> compared_calls_;
  bool has_compared_plans_ = false;
  bool has_compared_replicas_ = false;    // their plans
  bool has_compared_weights_ = false;     // since the weights were loaded
  std::int64_t evaluations_ = 0;          // since the last step
  detail::run_statement asked_steps_;     // by the user, in the call that runs
  after_step asked_ = after_step::go_on;  // of this process, and not told to others yet
  bool has_proposed_ = false;
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
      stages_(detail::make_or_refuse<Backend>(
          executor_,
          [&] { return detail::by_rank(stages, plan_.problem().placement(), executor_.ranks()); })),
      memory_(executor_.ranks().size()),
      on_stall_(options.on_stall),
      compares_weights_(options.compares_weights),
      agreements_(detail::make_or_refuse<Backend>(executor_, [&] {
        return detail::step_agreements(
            plan_.program(), plan_.problem(), executor_.ranks(), stages_, options);
      })) {
  detail::make_or_refuse<Backend>(executor_, [&] {
    detail::check_on_stall<Backend>(executor_, options.on_stall);
    for_each_rank([&](std::size_t, int rank, std::span<stage_ref const> own, rank_grid& grid) {
      detail::check_replicas(
          plan_, rank, own, grid, summing_transport<typename Backend::transport_type>);
      detail::require(
          grid.tensor().size() == 1 || !options.on_stall.runs_w,
          "on_stall.runs_w moves W of each rank by itself, and ranks that share stages need one "
          "order of passes; leave it false");
    });
  });
  for (std::size_t here = 0; here < memory_.size(); ++here)
    memory_[here].buffers = executor_.make_memory(executor_.ranks()[here]);
  if constexpr (Backend::reserves_memory)
    detail::make_or_refuse<Backend>(executor_, [&] {
      detail::reserve_peaks(
          plan_, detail::devices_of(backend, plan_.problem().ranks()), executor_.ranks(), memory_);
    });
  training_ = make_run(plan_.program(), nullptr);
  executor_.warm_up(training_->engines);
}

template <backend Backend>
pipeline<Backend>::~pipeline() {
  try {
    finish_all();
  } catch (...) {  // nobody has asked for those steps
  }
  try {  // before its connections close, so that other processes know why they do
    if constexpr (leaves_run<Backend>) executor_.leave();
  } catch (...) {  // they find them closed
  }
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
step_result const& pipeline<Backend>::evaluate_for(output_callback on_output) {
  auto const call = calls_.begin_evaluation();
  finish_all();
  if (evaluation_ == nullptr) evaluation_ = make_run(forward_only(plan_.program()), &outputs_);
  auto hand_out = [&](evaluation_output const& output) {
    auto const called = calls_.call_back();
    detail::named_call("on_output", {}, [&] { on_output(output); });
  };
  outputs_ = on_output ? output_callback(hand_out) : output_callback();
  using scope = std::shared_ptr<void>;
  scope scopes;  // the last one ends first, as stages may share what has a mode
  try {
    for (auto const& each : stages_)
      if (auto own = each.evaluation_scope())
        scopes = std::make_shared<std::pair<scope, scope>>(std::move(scopes), std::move(own));
  } catch (...) {
    report_callback();
  }
  execute(*evaluation_, 1);
  try {
    share(evaluation_->last_result());
  } catch (...) {
    report_callback();
  }
  ++evaluations_;
  return evaluation_->last_result();
}

template <backend Backend>
arena_usage const& pipeline<Backend>::memory(int rank) const {
  calls_.check_idle("memory()");
  auto const all = executor_.ranks();
  auto const found = std::find(all.begin(), all.end(), rank);
  detail::require(found != all.end(), "memory() takes a rank that runs in this process");
  return memory_[detail::index(found - all.begin())].buffers.usage();
}

template <backend Backend>
std::unique_ptr<detail::program_run<Backend>> pipeline<Backend>::make_run(
    program code, output_callback const* outputs) {
  auto const& timed = [&]() -> problem const& {
    if constexpr (states_times<Backend>)
      return executor_.stated();
    else
      return plan_.problem();
  }();
  return std::make_unique<program_run>(
      executor_, timed, std::move(code), stages_, memory_, on_stall_, agreements_, outputs);
}

template <backend Backend>
void pipeline<Backend>::execute(program_run& of, std::int64_t count, step_callback on_step) {
  failures_.clear();
  auto const stated = statement_of(of, count);
  try {
    compare_with_grid(stated);
  } catch (...) {
    if constexpr (proposes<Backend>) report_callback();  // other processes are told
    failures_.assign(1, {{.rank = executor_.ranks().front()}, {}, std::current_exception()});
    throw;
  }
  executor_.start_run();
  of.begin(
      executor_,
      {.first = state_.steps,
       .count = count,
       .evaluation = evaluations_,
       .on_step = on_step,
       .stated = stated});
  executor_.run(of.engines, *of.transport, of.status);
  if (of.status.has_failed())
    for (auto& e : of.engines) e.abandon();
  of.transport->drain();
  if (!of.status.has_failed()) return;
  note_failures(of);
  report(of);
}

// Says what ranks compare of the steps that come next.
template <backend Backend>
detail::run_statement pipeline<Backend>::statement_of(program_run const& of, std::int64_t count) {
  if (&of != training_.get()) return {.is_training = false, .step = state_.steps};
  auto stated = asked_steps_;
  stated.step = state_.steps;
  stated.at_once = count;
  auto& grid = detail::grid_of<Backend>(executor_, executor_.ranks().front());
  stated.compares_weights = compares_weights_ && !has_compared_weights_ && grid.has_members();
  // Where ranks agree on steps, they do not wait for each other besides.
  stated.step_decides = stated.step_decides && of.agreements == nullptr;
  try {
    for (std::size_t here = 0; here < memory_.size() && !stated.terms; ++here)
      if (auto* const part = agreements_.of(here); part != nullptr) stated.terms = part->terms();
  } catch (...) {  // a learning rate threw
    grid.fail(std::current_exception());
    report_callback();
  }
  return stated;
}

// Compares with the other pipelines of a grid what all of them need alike.
template <backend Backend>
void pipeline<Backend>::compare_with_grid(detail::run_statement const& stated) {
  auto const compare_plans = [&](bool is_training) {
    for_each_rank([&](auto, int rank, auto, rank_grid& grid) {
      detail::compare_plans(plan_, rank, grid, is_training);
    });
  };
  if (!std::exchange(has_compared_plans_, true)) compare_plans(false);
  if (stated.is_training && !std::exchange(has_compared_replicas_, true)) compare_plans(true);
  if constexpr (!proposes<Backend>)
    detail::compare_calls(
        plan_,
        stated,
        detail::grid_of<Backend>(executor_, executor_.ranks().front()),
        compared_calls_);
  if (stated.compares_weights) {
    has_compared_weights_ = true;
    for_each_rank([&](std::size_t here, int rank, auto stages, rank_grid& grid) {
      detail::run_at<Backend>(executor_, rank, memory_[here].buffers, [&](pass_context ctx) {
        detail::compare_weights(plan_, rank, stages, grid, ctx);
      });
    });
  }
}

// Notes what went wrong in this process, the first failure first.
template <backend Backend>
void pipeline<Backend>::note_failures(program_run const& of) {
  for (auto const& e : of.engines)
    if (e.what_failed().exception) failures_.push_back(e.what_failed());
  // The subrange that std::ranges gives does not compile with clang 14.
  std::stable_partition(failures_.begin(), failures_.end(), [&](failure const& f) {
    return f.location.rank == of.status.first();
  });
}

// Settles what was noted with other processes, and throws the first failure.
template <backend Backend>
void pipeline<Backend>::report(program_run const& of) {
  if (&of == training_.get())
    agreements_.settle([&](std::size_t here, auto const& work) {
      detail::run_at<Backend>(executor_, executor_.ranks()[here], memory_[here].buffers, work);
    });
  if (agreements_.of(0) != nullptr) state_ = agreements_.of(0)->state();
  executor_.settle(failures_);
  detail::rethrow_located(failures_.front());
}

}  // namespace zbpp

#include <zbpp/runtime/impl/pipeline_async.ipp>
#include <zbpp/runtime/impl/pipeline_run.ipp>
