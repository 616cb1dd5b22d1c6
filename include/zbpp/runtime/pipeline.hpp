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
  [[nodiscard]] plan const& planned() const { return ready().planned; }
  /// @return what the first rank here knows of its grid, for collective calls between two steps
  /// @throws as `failures`
  [[nodiscard]] rank_grid& grid() {
    calls_.check_idle("grid()");
    return detail::grid_of<Backend>(ready().executor, ready().executor.ranks().front());
  }
  /// @return what a rank's arena holds, and the most it held in the last step
  /// @throws error (bad_argument) when the rank does not run in this process, or while a call runs
  ///         that does not pause
  [[nodiscard]] arena_usage const& memory(int rank) const;

 private:
  friend class started_step<pipeline>;
  using program_run = detail::program_run<Backend>;
  using step_callback = detail::callback<step_result, after_step>;
  using output_callback = detail::callback<evaluation_output>;
  // What a run calls for each step.
  struct step_calls {
    step_callback on_step{};
    bool decides = false;  // it says what comes next
  };

  // A plan that is ready to run.
  struct ready_plan {
    ready_plan(
        plan const& given,
        Backend const& backend,
        std::vector<stage_ref> const& all_stages,
        training_options const& options);
    ready_plan(ready_plan const&) = delete;
    ready_plan& operator=(ready_plan const&) = delete;
    ~ready_plan();

    [[nodiscard]] std::unique_ptr<program_run> make_run(
        program code, stall_options const& on_stall, output_callback const* outputs);
    // Calls `work(here, rank, stages, grid)` for each rank of this process.
    template <class Work>
    void for_each_rank(Work const& work) {
      auto left = std::span<stage_ref const>(stages);
      for (std::size_t here = 0; here < memory.size(); ++here) {
        int const rank = executor.ranks()[here];
        auto const chunks = planned.problem().placement().stages_of(rank).size();
        work(here, rank, left.first(chunks), detail::grid_of<Backend>(executor, rank));
        left = left.subspan(chunks);
      }
    }

    plan planned;
    typename Backend::executor executor;
    std::vector<stage_ref> stages;  // rank after rank
    std::vector<rank_memory> memory;
    // With those of the ranks that its ranks wait for.
    std::vector<std::vector<std::byte>> compared_calls;
    bool has_compared_plans = false;
    bool has_compared_replicas = false;  // their plans
    detail::step_agreements agreements;
    std::unique_ptr<program_run> training;
    std::unique_ptr<program_run> evaluation;
  };

  pipeline(
      std::vector<stage_ref> stages,
      plan const& planned,
      Backend backend,
      training_options const& options);

  [[nodiscard]] ready_plan& ready() const {
    detail::require(
        ready_ != nullptr, "there is no plan: neither another one nor the one before it could run");
    return *ready_;
  }
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
  after_step call_back(step_callback on_step, step_result const& result);
  void note_failures(program_run const& of);
  [[noreturn]] void report(program_run const& of);
  [[noreturn]] void report_callback();
  step_result const& result_of(std::int64_t ticket);
  void finish_oldest();
  void finish_all();
  [[nodiscard]] std::size_t turn_of(std::int64_t ticket) const noexcept {
    return detail::index(ticket) % ready().training->results.size();
  }

  Backend backend_;
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

template <class Backend, class Stages>
pipeline(plan const&, Backend, Stages&&) -> pipeline<Backend>;
template <class Backend, class Stages>
pipeline(plan const&, Backend, Stages&&, training_options const&) -> pipeline<Backend>;

template <backend Backend>
pipeline<Backend>::ready_plan::ready_plan(
    plan const& given,
    Backend const& backend,
    std::vector<stage_ref> const& all_stages,
    training_options const& options)
    : planned(detail::verified(given, detail::devices_of(backend, given.problem().ranks()))),
      executor(backend, planned),
      stages(detail::make_or_refuse<Backend>(
          executor,
          [&] {
            return detail::by_rank(all_stages, planned.problem().placement(), executor.ranks());
          })),
      memory(executor.ranks().size()),
      agreements(detail::make_or_refuse<Backend>(executor, [&] {
        return detail::step_agreements(
            planned.program(), planned.problem(), executor.ranks(), stages, options);
      })) {
  detail::make_or_refuse<Backend>(executor, [&] {
    detail::check_on_stall<Backend>(executor, options.on_stall);
    for_each_rank([&](std::size_t, int rank, std::span<stage_ref const> own, rank_grid& grid) {
      detail::check_replicas(
          planned, rank, own, grid, summing_transport<typename Backend::transport_type>);
      detail::require(
          grid.tensor().size() == 1 || !options.on_stall.runs_w,
          "on_stall.runs_w moves W of each rank by itself, and ranks that share stages need one "
          "order of passes; leave it false");
    });
  });
  for (std::size_t here = 0; here < memory.size(); ++here)
    memory[here].buffers = executor.make_memory(executor.ranks()[here]);
  if constexpr (Backend::reserves_memory)
    detail::make_or_refuse<Backend>(executor, [&] {
      detail::reserve_peaks(
          planned,
          detail::devices_of(backend, planned.problem().ranks()),
          executor.ranks(),
          memory);
    });
  training = make_run(planned.program(), options.on_stall, nullptr);
  executor.warm_up(training->engines);
}

template <backend Backend>
pipeline<Backend>::ready_plan::~ready_plan() {
  try {  // before its connections close, so that other processes know why they do
    if constexpr (leaves_run<Backend>) executor.leave();
  } catch (...) {  // they find them closed
  }
}

template <backend Backend>
std::unique_ptr<detail::program_run<Backend>> pipeline<Backend>::ready_plan::make_run(
    program code, stall_options const& on_stall, output_callback const* outputs) {
  auto const& timed = [&]() -> problem const& {
    if constexpr (states_times<Backend>)
      return executor.stated();
    else
      return planned.problem();
  }();
  return std::make_unique<program_run>(
      executor, timed, std::move(code), stages, memory, on_stall, agreements, outputs);
}

template <backend Backend>
pipeline<Backend>::pipeline(
    std::vector<stage_ref> stages,
    plan const& planned,
    Backend backend,
    training_options const& options)
    : backend_(std::move(backend)),
      stages_(std::move(stages)),
      options_(options),
      ready_(std::make_unique<ready_plan>(planned, backend_, stages_, options_)) {}

template <backend Backend>
void pipeline<Backend>::take(plan const& next) {
  auto const call = calls_.begin("take()");
  finish_all();
  started_.expire();
  evaluations_ = 0;
  auto const before = ready().planned;
  if constexpr (states_times<Backend>)
    if (!backend_.stated) backend_.stated = before.problem();
  auto const run = [&](plan const& planned) {
    ready_ = std::make_unique<ready_plan>(planned, backend_, stages_, options_);
    ready().agreements.resume(state_);
  };
  ready_.reset();  // gives its memory back first
  try {
    run(next);
  } catch (...) {
    auto const refused = std::current_exception();
    try {
      run(before);
    } catch (...) {  // for the same reason, such as a run of processes that is over
      ready_.reset();
      std::rethrow_exception(refused);
    }
    throw;
  }
}

template <backend Backend>
pipeline<Backend>::~pipeline() {
  try {
    finish_all();
  } catch (...) {  // nobody has asked for those steps
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
  if (ready().evaluation == nullptr)
    ready().evaluation =
        ready().make_run(forward_only(ready().planned.program()), options_.on_stall, &outputs_);
  auto hand_out = [&](evaluation_output const& output) {
    auto const called = calls_.call_back();
    detail::named_call("on_output", {}, [&] { on_output(output); });
  };
  outputs_ = on_output ? output_callback(hand_out) : output_callback();
  using scope = std::shared_ptr<void>;
  scope scopes;  // the last one ends first, as stages may share what has a mode
  try {
    for (auto const& each : ready().stages)
      if (auto own = each.evaluation_scope())
        scopes = std::make_shared<std::pair<scope, scope>>(std::move(scopes), std::move(own));
  } catch (...) {
    report_callback();
  }
  execute(*ready().evaluation, 1);
  try {
    share(ready().evaluation->last_result());
  } catch (...) {
    report_callback();
  }
  ++evaluations_;
  return ready().evaluation->last_result();
}

template <backend Backend>
arena_usage const& pipeline<Backend>::memory(int rank) const {
  calls_.check_idle("memory()");
  auto const all = ready().executor.ranks();
  auto const found = std::find(all.begin(), all.end(), rank);
  detail::require(found != all.end(), "memory() takes a rank that runs in this process");
  return ready().memory[detail::index(found - all.begin())].buffers.usage();
}

template <backend Backend>
void pipeline<Backend>::execute(program_run& of, std::int64_t count, step_callback on_step) {
  failures_.clear();
  auto const stated = statement_of(of, count);
  try {
    compare_with_grid(stated);
  } catch (...) {
    if constexpr (proposes<Backend>) report_callback();  // other processes are told
    failures_.assign(1, {{.rank = ready().executor.ranks().front()}, {}, std::current_exception()});
    throw;
  }
  ready().executor.start_run();
  of.begin(
      ready().executor,
      {.first = state_.steps,
       .count = count,
       .evaluation = evaluations_,
       .on_step = on_step,
       .stated = stated});
  ready().executor.run(of.engines, *of.transport, of.status);
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
  if (&of != ready().training.get()) return {.is_training = false, .step = state_.steps};
  auto stated = asked_steps_;
  stated.step = state_.steps;
  stated.at_once = count;
  auto& grid = detail::grid_of<Backend>(ready().executor, ready().executor.ranks().front());
  stated.compares_weights =
      options_.compares_weights && !has_compared_weights_ && grid.has_members();
  // Where ranks agree on steps, they do not wait for each other besides.
  stated.step_decides = stated.step_decides && of.agreements == nullptr;
  try {
    for (std::size_t here = 0; here < ready().memory.size() && !stated.terms; ++here)
      if (auto* const part = ready().agreements.of(here); part != nullptr)
        stated.terms = part->terms();
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
    ready().for_each_rank([&](auto, int rank, auto, rank_grid& grid) {
      detail::compare_plans(ready().planned, rank, grid, is_training);
    });
  };
  if (!std::exchange(ready().has_compared_plans, true)) compare_plans(false);
  if (stated.is_training && !std::exchange(ready().has_compared_replicas, true))
    compare_plans(true);
  if constexpr (!proposes<Backend>)
    detail::compare_calls(
        ready().planned,
        stated,
        detail::grid_of<Backend>(ready().executor, ready().executor.ranks().front()),
        ready().compared_calls);
  if (stated.compares_weights) {
    has_compared_weights_ = true;
    ready().for_each_rank([&](std::size_t here, int rank, auto stages, rank_grid& grid) {
      detail::run_at<Backend>(
          ready().executor, rank, ready().memory[here].buffers, [&](pass_context ctx) {
            detail::compare_weights(ready().planned, rank, stages, grid, ctx);
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
  if (&of == ready().training.get())
    ready().agreements.settle([&](std::size_t here, auto const& work) {
      detail::run_at<Backend>(
          ready().executor, ready().executor.ranks()[here], ready().memory[here].buffers, work);
    });
  if (ready().agreements.of(0) != nullptr) state_ = ready().agreements.of(0)->state();
  ready().executor.settle(failures_);
  detail::rethrow_located(failures_.front());
}

}  // namespace zbpp

#include <zbpp/runtime/impl/pipeline_async.ipp>
#include <zbpp/runtime/impl/pipeline_run.ipp>
