// SPDX-License-Identifier: Apache-2.0
//
// A pipeline: a verified plan, the stages that do the work, and a backend that runs them, step
// after step. A program that `verify` refuses never runs.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/pipeline_setup.hpp>
#include <zbpp/runtime/detail/rethrow.hpp>
#include <zbpp/runtime/detail/step_agreements.hpp>
#include <zbpp/runtime/engine.hpp>
#include <zbpp/runtime/engine_run.hpp>
#include <zbpp/runtime/failure.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
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

  /// Runs the forward passes only. What a rank sends stays in its memory until the end, because
  /// no gradient comes back that would tell that it was consumed.
  /// @throws as `step`
  step_result const& evaluate();

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
  using transport_type = typename Backend::transport_type;
  using engine_type = engine<transport_type, typename Backend::pass_observer>;

  struct run_state;  // engines, transport and result of one program, training or evaluation

  pipeline(
      std::vector<stage_ref> const& stages,
      plan const& planned,
      Backend backend,
      training_options const& options);

  // What is called with the result of a step.
  struct step_callback {
    void* object = nullptr;
    void (*call)(void*, step_result const&) = nullptr;
  };

  step_result const& train(std::int64_t count, step_callback told);
  void run(run_state& what, std::int64_t count, step_callback told = {});
  [[noreturn]] void report(run_state const& what);

  plan plan_;
  typename Backend::executor executor_;
  std::vector<stage_ref> stages_;  // rank after rank
  std::vector<rank_memory> memory_;
  training_state state_;
  detail::step_agreements agreements_;
  std::unique_ptr<run_state> training_;
  std::unique_ptr<run_state> evaluation_;
  std::vector<failure> failures_;
};

template <class Backend, class Stages>
pipeline(plan const&, Backend, Stages&&) -> pipeline<Backend>;
template <class Backend, class Stages>
pipeline(plan const&, Backend, Stages&&, training_options const&) -> pipeline<Backend>;

template <backend Backend>
struct pipeline<Backend>::run_state final : step_listener {
  run_state(pipeline& owner, program program_to_run, bool is_training);

  // Gets the places ready for steps to come.
  void begin(std::int64_t first_step, std::int64_t step_count, step_callback told_of);
  void on_judged(std::int64_t step) override;
  [[nodiscard]] step_result& result_of(std::int64_t step) {
    return results[detail::index(step - first) % results.size()];
  }

  program code;
  traffic messages;
  std::unique_ptr<transport_type> transport;
  step_status status;
  std::array<step_result, 2> results;  // of steps in turn: ranks are one step apart at most
  std::vector<engine_type> engines;
  detail::step_agreements const* agreements = nullptr;  // null where ranks agree on nothing
  std::int64_t first = 0;
  std::int64_t count = 1;
  step_callback told;
};

template <backend Backend>
pipeline<Backend>::run_state::run_state(pipeline& owner, program program_to_run, bool is_training)
    : code(std::move(program_to_run)),
      messages(code),
      transport(owner.executor_.make_transport(code, messages, owner.plan_.problem())) {
  auto const here = owner.executor_.ranks();
  std::span<stage_ref const> stages = owner.stages_;
  if (is_training) {
    detail::check_backend(
        code, agreeing_transport<transport_type>, multi_step_transport<transport_type>);
    if (agrees_on_steps(code)) agreements = &owner.agreements_;
  }
  auto& result = results.front();
  engines.reserve(here.size());
  for (int rank = 0; rank < code.ranks(); ++rank) {
    if (engines.size() < here.size() && here[engines.size()] == rank) {
      auto& memory = owner.memory_[engines.size()];
      auto const chunks = code.placement().stages_of(rank).size();
      transport->bind(rank, memory.buffers, owner.executor_.wakeup_of(rank));
      engines.emplace_back(
          rank,
          code,
          messages,
          owner.plan_.problem(),
          stages.first(chunks),
          memory,
          owner.executor_.context_of(rank, memory.buffers),
          *transport,
          status,
          is_training ? owner.agreements_.of(engines.size()) : nullptr,
          is_training);
      stages = stages.subspan(chunks);
      for (auto const& i : code.instructions(rank))
        if (i.is_pass()) result.measured.push({i.as_pass(), 0, 0});
    }
    result.measured.end_row();
  }
  result.losses.resize(detail::index(code.microbatches()));
  if (agreements != nullptr) {
    result.ranks.resize(detail::index(code.ranks()));
    results.back() = result;
  }
  owner.executor_.connect(*transport);
}

template <backend Backend>
void pipeline<Backend>::run_state::begin(
    std::int64_t first_step, std::int64_t step_count, step_callback told_of) {
  status.reset();
  first = first_step;
  count = step_count;
  told = told_of;
  for (auto& each : results)
    std::ranges::fill(each.losses, std::numeric_limits<double>::quiet_NaN());
}

// The first rank of the process is the last to learn a verdict, and no rank begins the step after
// next before the first one has gone on; so this step's places are nobody else's now.
template <backend Backend>
void pipeline<Backend>::run_state::on_judged(std::int64_t step) {
  auto& result = result_of(step);
  result.update = agreements->of(0)->report();
  if (told.call != nullptr) told.call(told.object, result);
  if (step + 1 < first + count)
    std::ranges::fill(result.losses, std::numeric_limits<double>::quiet_NaN());
}

template <backend Backend>
pipeline<Backend>::pipeline(
    std::vector<stage_ref> const& stages,
    plan const& planned,
    Backend backend,
    training_options const& options)
    : plan_(detail::verified(planned)),
      executor_(backend, plan_),
      stages_(detail::by_rank(stages, plan_.problem().placement(), executor_.ranks())),
      memory_(executor_.ranks().size()),
      agreements_(plan_.program(), plan_.problem(), executor_.ranks(), stages_, options) {
  for (std::size_t here = 0; here < memory_.size(); ++here)
    memory_[here].buffers = executor_.make_memory(executor_.ranks()[here]);
  if constexpr (Backend::reserves_memory) detail::reserve_peaks(plan_, executor_.ranks(), memory_);
  training_ = std::make_unique<run_state>(*this, plan_.program(), true);
  executor_.warm_up(training_->engines);
}

template <backend Backend>
pipeline<Backend>::~pipeline() = default;

template <backend Backend>
step_result const& pipeline<Backend>::step() {
  return train(1, {});
}

template <backend Backend>
template <std::invocable<step_result const&> OnStep>
step_result const& pipeline<Backend>::run(std::int64_t count, OnStep on_step) {
  detail::require(count >= 1, "run() takes a number of steps from 1");
  return train(count, {&on_step, [](void* object, step_result const& result) {
                         (*static_cast<OnStep*>(object))(result);
                       }});
}

template <backend Backend>
step_result const& pipeline<Backend>::train(std::int64_t count, step_callback told) {
  if (multi_step_transport<transport_type> && training_->agreements != nullptr) {
    run(*training_, count, told);
    state_ = agreements_.of(0)->state();
    return training_->result_of(state_.steps - 1);
  }
  for (auto& result = training_->results.front(); count > 0; --count) {
    run(*training_, 1);
    ++state_.steps;
    if (agreements_.of(0) != nullptr) state_ = agreements_.of(0)->state();
    if (told.call != nullptr) told.call(told.object, result);
  }
  return training_->results.front();
}

template <backend Backend>
void pipeline<Backend>::resume(training_state const& state) {
  state_ = state;
  agreements_.resume(state);
}

template <backend Backend>
step_result const& pipeline<Backend>::evaluate() {
  if (evaluation_ == nullptr)
    evaluation_ = std::make_unique<run_state>(*this, detail::forward_only(plan_.program()), false);
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
void pipeline<Backend>::run(run_state& what, std::int64_t count, step_callback told) {
  failures_.clear();
  what.begin(state_.steps, count, told);
  executor_.start_run();
  for (auto& e : what.engines) {
    engine_run run{.first = state_.steps, .count = count};
    for (std::size_t i = 0; i < what.results.size(); ++i) {
      auto& result = what.results[i];
      if (i > 0 && what.agreements == nullptr) break;
      run.places[i] = {.losses = result.losses, .trace = result.measured[e.rank()]};
      if (what.agreements != nullptr) run.places[i].update = &result.ranks[detail::index(e.rank())];
    }
    if (what.agreements != nullptr && &e == &what.engines.front()) run.listener = &what;
    e.begin(run, executor_.observer_of(e.rank()));
  }
  executor_.run(what.engines, *what.transport, what.status);
  if (what.status.has_failed())
    for (auto& e : what.engines) e.abandon();
  what.transport->drain();
  if (what.status.has_failed()) report(what);
}

template <backend Backend>
void pipeline<Backend>::report(run_state const& what) {
  for (auto const& e : what.engines)
    if (e.what_failed().exception) failures_.push_back(e.what_failed());
  // The subrange that std::ranges gives does not compile with clang 14.
  std::stable_partition(failures_.begin(), failures_.end(), [&](failure const& f) {
    return f.location.rank == what.status.first();
  });
  if (&what == training_.get())
    agreements_.settle([&](std::size_t here, auto const& work) {
      detail::run_at(executor_, executor_.ranks()[here], memory_[here].buffers, work);
    });
  if (agreements_.of(0) != nullptr) state_ = agreements_.of(0)->state();
  executor_.settle(failures_);
  detail::rethrow_located(failures_.front());
}

}  // namespace zbpp
