// SPDX-License-Identifier: Apache-2.0
//
// How a pipeline gets its plan ready, runs its steps one after another, pauses, and ends.
#pragma once

#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/grid_agreement.hpp>
#include <zbpp/runtime/detail/step_agreements.hpp>
#include <zbpp/runtime/executor.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

/// Holds a plan that is ready to run.
struct pipeline_core::ready_plan {
  ready_plan(
      plan const& given,
      backend_link const& by,
      std::vector<stage_ref> const& all_stages,
      training_options const& options)
      : backend(&by),
        planned(detail::verified(given, by.devices_of(given.problem().ranks()))),
        executor(by.make_executor(planned)),
        stages(detail::make_or_refuse(
            *executor,
            [&] {
              return detail::by_rank(all_stages, planned.problem().placement(), executor->ranks());
            })),
        memory(executor->ranks().size()),
        agreements(detail::make_or_refuse(*executor, [&] {
          return detail::step_agreements(
              planned.program(), planned.problem(), executor->ranks(), stages, options);
        })) {
    detail::make_or_refuse(*executor, [&] { check(options.on_stall); });
    for (std::size_t here = 0; here < memory.size(); ++here)
      memory[here].buffers = executor->make_memory(executor->ranks()[here]);
    if (by.traits().reserves_memory)
      detail::make_or_refuse(*executor, [&] {
        detail::reserve_peaks(
            planned, by.devices_of(planned.problem().ranks()), executor->ranks(), memory);
      });
    training = make_run(planned.program(), options.on_stall, nullptr);
    training->warm_up();
  }
  ready_plan(ready_plan const&) = delete;
  ready_plan& operator=(ready_plan const&) = delete;
  ~ready_plan() {
    try {  // before its connections close, so that other processes know why they do
      executor->leave();
    } catch (...) {  // they find them closed
    }
  }

  /// Refuses stages and options that do not fit the grid.
  void check(stall_options const& on_stall) {
    detail::require(
        executor->waits_idle() || !on_stall.runs_w,
        "on_stall.runs_w needs ranks that each wait on a thread of their own: threads with one per "
        "rank, virtual_time or asio::tcp");
    for_each_rank([&](std::size_t, int rank, std::span<stage_ref const> own, rank_grid& grid) {
      detail::check_replicas(planned, rank, own, grid, backend->traits().sums_in_place);
      detail::require(
          grid.tensor().size() == 1 || !on_stall.runs_w,
          "on_stall.runs_w moves W of each rank by itself, and ranks that share stages need one "
          "order of passes; leave it false");
    });
  }
  [[nodiscard]] std::unique_ptr<program_run> make_run(
      program code, stall_options const& on_stall, output_callback const* outputs) {
    auto const* const stated = executor->stated();
    return backend->make_run(
        std::move(code),
        {.executor = *executor,
         .problem = stated == nullptr ? planned.problem() : *stated,
         .stages = stages,
         .memory = memory,
         .on_stall = on_stall,
         .agreed = &agreements,
         .outputs = outputs});
  }
  /// Calls `work(here, rank, stages, grid)` for each rank of this process.
  template <class Work>
  void for_each_rank(Work const& work) {
    auto left = std::span<stage_ref const>(stages);
    for (std::size_t here = 0; here < memory.size(); ++here) {
      int const rank = executor->ranks()[here];
      auto const chunks = planned.problem().placement().stages_of(rank).size();
      work(here, rank, left.first(chunks), detail::grid_of(*executor, rank));
      left = left.subspan(chunks);
    }
  }
  /// Runs what belongs to a rank, and is no pass, where its passes run.
  void run_at(std::size_t here, std::function<void(pass_context)> const& work) {
    int const rank = executor->ranks()[here];
    auto const ctx = executor->context_of(rank, memory[here].buffers);
    auto const entered = executor->enter(rank);
    work(ctx);
  }

  backend_link const* backend;
  plan planned;
  std::unique_ptr<zbpp::executor> executor;
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

ZBPP_INLINE pipeline_core::pipeline_core(
    std::unique_ptr<backend_link> backend,
    std::vector<stage_ref> stages,
    plan const& planned,
    training_options const& options)
    : backend_(std::move(backend)),
      stages_(std::move(stages)),
      options_(options),
      ready_(std::make_unique<ready_plan>(planned, *backend_, stages_, options_)) {}

ZBPP_INLINE pipeline_core::~pipeline_core() {
  try {
    finish_all();
  } catch (...) {  // nobody has asked for those steps
  }
}

ZBPP_INLINE void pipeline_core::take(plan const& next) {
  auto const call = calls_.begin("take()");
  finish_all();
  started_.expire();
  evaluations_ = 0;
  auto const before = ready().planned;
  backend_->keep_times(before.problem());
  auto const run = [&](plan const& planned) {
    ready_ = std::make_unique<ready_plan>(planned, *backend_, stages_, options_);
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

ZBPP_INLINE void pipeline_core::resume(training_state const& state) {
  auto const call = calls_.begin("resume()");
  detail::check(state);
  finish_all();
  evaluations_ = 0;
  has_compared_weights_ = false;
  state_ = state;
  ready().agreements.resume(state);
}

ZBPP_INLINE pipeline_core::ready_plan& pipeline_core::ready() const {
  detail::require(
      ready_ != nullptr, "there is no plan: neither another one nor the one before it could run");
  return *ready_;
}

ZBPP_INLINE int pipeline_core::first_rank() const { return ready().executor->ranks().front(); }

ZBPP_INLINE plan const& pipeline_core::planned() const { return ready().planned; }

ZBPP_INLINE rank_grid& pipeline_core::grid() {
  calls_.check_idle("grid()");
  return detail::grid_of(*ready().executor, first_rank());
}

ZBPP_INLINE arena_usage const& pipeline_core::memory(int rank) const {
  calls_.check_idle("memory()");
  auto const all = ready().executor->ranks();
  auto const found = std::find(all.begin(), all.end(), rank);
  detail::require(found != all.end(), "memory() takes a rank that runs in this process");
  return ready().memory[detail::index(found - all.begin())].buffers.usage();
}

// Steps.

ZBPP_INLINE step_result const& pipeline_core::step() {
  auto const call = calls_.begin("step()");
  return train(1, {}, {});
}

ZBPP_INLINE void pipeline_core::check_run(
    std::int64_t count, run_options const& options, bool decides) const {
  detail::require(count >= 1, "run() takes a number of steps from 1");
  detail::require(
      options.pause_every >= 0, "run_options::pause_every counts steps; it is at least 0");
  detail::require(
      options.pause_every == 0 || options.on_pause,
      "run_options::pause_every is set and on_pause is not; say what the run does when it pauses");
  detail::require(
      !options.on_pause || options.pause_every > 0 || decides,
      "run_options::on_pause is set and nothing asks for a pause; set pause_every, or let on_step "
      "give an after_step");
}

ZBPP_INLINE step_result const& pipeline_core::train(
    std::int64_t count, step_calls calls, run_options const& options) {
  finish_all();
  started_.expire();
  ready().agreements.forget_request();
  asked_ = after_step::go_on;
  has_proposed_ = false;
  asked_steps_ = {
      .first = state_.steps,
      .count = count,
      .step_decides = calls.decides,
      .pause_decides = options.on_pause && options.on_pause.decides(),
      .pause_every = options.pause_every};
  auto const end = state_.steps + count;
  for (auto next = after_step::go_on; next != after_step::stop && state_.steps < end;) {
    next = train_until(detail::next_pause(options, state_.steps, end), calls);
    bool const is_due = options.pause_every > 0 && state_.steps % options.pause_every == 0;
    if (options.on_pause && (is_due || next == after_step::pause))
      next = std::max(next, pause(options.on_pause));
  }
  return ready().training->last_result();
}

// Runs steps up to a number of them, or until something else comes next. Returns that.
ZBPP_INLINE after_step pipeline_core::train_until(std::int64_t end, step_calls calls) {
  evaluations_ = 0;
  auto& training = *ready().training;
  auto& agreements = ready().agreements;
  bool const shares_losses = ready().executor->shares_losses();
  if (backend_->traits().repeats_steps && training.agrees() && !shares_losses) {
    auto& part = *agreements.of(0);
    auto ask = [&](step_result const& result) {
      state_ = training.state_of_callback();
      return call_back(calls.on_step, result);
    };
    auto const called = calls.on_step ? step_callback(ask) : step_callback();
    execute(training, end - state_.steps, called);
    try {
      training.call_back_until(part.state().steps - 1);
    } catch (...) {
      report_callback();
    }
    state_ = part.state();
    return part.next();
  }
  auto next = after_step::go_on;
  while (next == after_step::go_on && state_.steps < end) {
    execute(training, 1);
    agreements.count_step(state_);
    try {
      share(training.last_result());
      next = call_back(calls.on_step, training.last_result());
      if (training.agrees() && shares_losses)
        agreements.of(0)->request(std::exchange(next, agreements.of(0)->next()));
      else if (calls.decides)
        next = decide(next, state_.steps == end);
    } catch (...) {
      report_callback();
    }
  }
  return next;
}

// With one process per rank, what is asked for after a step is decided at the end of the next one,
// so that no rank waits for others while there are passes to run; before a pause, where all wait
// anyway, at once.
ZBPP_INLINE after_step pipeline_core::decide(after_step asked, bool is_before_pause) {
  auto& executor = *ready().executor;
  if (!executor.has_other_processes()) return ask_replicas(asked);
  asked_ = std::max(asked_, asked);
  auto const next = std::exchange(has_proposed_, false) ? executor.decision() : after_step::go_on;
  bool const is_end = state_.steps == asked_steps_.first + asked_steps_.count;
  if (next != after_step::go_on || is_end) return next;
  executor.propose(std::exchange(asked_, after_step::go_on));
  if (is_before_pause) return executor.decision();
  has_proposed_ = true;
  return next;
}

// Replicas in this process end and pause together, too, where they add gradients up.
ZBPP_INLINE after_step pipeline_core::ask_replicas(after_step asked) {
  if (!reduces_gradients(ready().planned.program())) return asked;
  return detail::most_asked(detail::grid_of(*ready().executor, first_rank()).data(), asked);
}

// Puts the losses of a step into the results of all processes, where all want them.
ZBPP_INLINE void pipeline_core::share(step_result& result) {
  auto const& placement = ready().planned.problem().placement();
  if (ready().executor->shares_losses())
    ready().executor->share_losses(result.losses, placement.rank_of(placement.stages() - 1));
}

ZBPP_INLINE after_step pipeline_core::pause(pause_call const& on_pause) {
  try {
    auto const next = [&] {
      auto const paused = calls_.pause();
      try {
        return on_pause();
      } catch (...) {
        if (!failures_.empty()) throw;  // an evaluation failed, and has settled it
        detail::rethrow_of("on_pause", {.rank = first_rank()});
      }
    }();
    if (!on_pause.decides()) return next;
    auto& executor = *ready().executor;
    if (!executor.has_other_processes()) return ask_replicas(next);
    executor.propose(next);
    return executor.decision();
  } catch (error const&) {
    if (!failures_.empty()) throw;
    report_callback();
  } catch (...) {
    report_callback();
  }
}

ZBPP_INLINE step_result const& pipeline_core::evaluate_for(output_callback on_output) {
  auto const call = calls_.begin_evaluation();
  finish_all();
  if (ready().evaluation == nullptr)
    ready().evaluation =
        ready().make_run(forward_only(ready().planned.program()), options_.on_stall, &outputs_);
  auto& evaluation = *ready().evaluation;
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
  execute(evaluation, 1);
  try {
    share(evaluation.last_result());
  } catch (...) {
    report_callback();
  }
  ++evaluations_;
  return evaluation.last_result();
}

ZBPP_INLINE void pipeline_core::execute(
    program_run& of, std::int64_t count, step_callback on_step) {
  failures_.clear();
  auto const stated = statement_of(of, count);
  try {
    compare_with_grid(stated);
  } catch (...) {
    if (ready().executor->has_other_processes()) report_callback();  // they are told
    failures_.assign(1, {{.rank = first_rank()}, {}, std::current_exception()});
    throw;
  }
  of.begin(
      {.first = state_.steps,
       .count = count,
       .evaluation = evaluations_,
       .on_step = on_step,
       .stated = stated});
  of.run();
  if (!of.has_failed()) return;
  of.note_failures(failures_);
  report(of);
}

// Says what ranks compare of the steps that come next.
ZBPP_INLINE detail::run_statement pipeline_core::statement_of(
    program_run const& of, std::int64_t count) {
  if (&of != ready().training.get()) return {.is_training = false, .step = state_.steps};
  auto stated = asked_steps_;
  stated.step = state_.steps;
  stated.at_once = count;
  auto& grid = detail::grid_of(*ready().executor, first_rank());
  stated.compares_weights =
      options_.compares_weights && !has_compared_weights_ && grid.has_members();
  // Where ranks agree on steps, they do not wait for each other besides.
  stated.step_decides = stated.step_decides && !of.agrees();
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
ZBPP_INLINE void pipeline_core::compare_with_grid(detail::run_statement const& stated) {
  auto const compare_plans = [&](bool is_training) {
    ready().for_each_rank([&](auto, int rank, auto, rank_grid& grid) {
      detail::compare_plans(ready().planned, rank, grid, is_training);
    });
  };
  if (!std::exchange(ready().has_compared_plans, true)) compare_plans(false);
  if (stated.is_training && !std::exchange(ready().has_compared_replicas, true))
    compare_plans(true);
  if (!ready().executor->has_other_processes())
    detail::compare_calls(
        ready().planned,
        stated,
        detail::grid_of(*ready().executor, first_rank()),
        ready().compared_calls);
  if (!stated.compares_weights) return;
  has_compared_weights_ = true;
  ready().for_each_rank([&](std::size_t here, int rank, auto stages, rank_grid& grid) {
    ready().run_at(here, [&](pass_context ctx) {
      detail::compare_weights(ready().planned, rank, stages, grid, ctx);
    });
  });
}

// Where ranks agree, an engine calls.
ZBPP_INLINE after_step pipeline_core::call_back(step_callback on_step, step_result const& result) {
  if (!on_step) return after_step::go_on;
  auto const called = calls_.call_back();
  return on_step(result);
}

// Settles what was noted with other processes, and throws the first failure.
ZBPP_INLINE void pipeline_core::report(program_run const& of) {
  auto& agreements = ready().agreements;
  if (&of == ready().training.get())
    agreements.settle([&](std::size_t here, auto const& work) { ready().run_at(here, work); });
  if (agreements.of(0) != nullptr) state_ = agreements.of(0)->state();
  ready().executor->settle(failures_);
  detail::rethrow_located(failures_.front());
}

// Settles what a callback threw between two steps, and throws it. Where ranks agree, an engine
// calls; what is thrown is a failure of its rank there, too.
ZBPP_INLINE void pipeline_core::report_callback() {
  failures_.assign(1, {{.rank = first_rank()}, {}, std::current_exception()});
  ready().executor->settle(failures_);
  detail::rethrow_located(failures_.front());
}

// Steps that begin while others run.

ZBPP_INLINE started_step pipeline_core::begin_step() {
  auto const call = calls_.begin("step_async()");
  auto& executor = *ready().executor;
  auto& training = *ready().training;
  detail::require(
      ready().agreements.of(0) == nullptr,
      "step_async() is called where a stage has an optimizer(), or where training_options ask for "
      "accumulation, a loss scale, a learning rate or on_gradients_ready, for which the host waits "
      "in every step; call step()");
  detail::require(
      !executor.shares_losses(),
      "step_async() is called where share_losses is set, for which ranks wait behind every step; "
      "call step()");
  if (started_.under_way() == executor.steps_at_once()) finish_oldest();
  failures_.clear();
  auto const ticket = started_.next();
  auto const number = state_.steps + started_.under_way();
  evaluations_ = 0;
  started_.take_place(training.places());
  training.begin(
      {.first = number,
       .turn = turn_of(ticket),
       .stated = {.first = number, .count = 1, .step = number, .at_once = 1}});
  training.start();
  if (training.has_failed()) {
    training.note_failures(failures_);
    finish_all();  // they were issued before the failure
    report(training);
  }
  started_.begin();
  return {*this, ticket, number};
}

ZBPP_INLINE void pipeline_core::finish_oldest() {
  if (!ready().training->finish(turn_of(started_.oldest()), failures_)) {
    try {
      report(*ready().training);
    } catch (...) {
      started_.give_up(std::current_exception());
      throw;
    }
  }
  started_.finish();
  ready().agreements.count_step(state_);
}

ZBPP_INLINE void pipeline_core::finish_all() {
  while (started_.under_way() > 0) finish_oldest();
}

ZBPP_INLINE std::size_t pipeline_core::turn_of(std::int64_t ticket) const noexcept {
  return detail::index(ticket) % ready_->training->places();
}

ZBPP_INLINE step_result const& pipeline_core::result_of(std::int64_t ticket) {
  auto const call = calls_.begin("get()");
  while (started_.is_under_way(ticket)) finish_oldest();
  started_.check(ticket);
  detail::require(
      started_.has_result(ticket),
      "get() is called when another step has taken the place of the result; call it before step() "
      "or run(), and before as many more steps begin as steps_at_once says");
  return ready().training->result_at(turn_of(ticket));
}

ZBPP_INLINE step_result const& started_step::get() const { return pipe_->result_of(ticket_); }

}  // namespace zbpp
