// SPDX-License-Identifier: Apache-2.0
//
// A pipeline that plans again while it trains, and runs the better plan from the next step on.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/error.hpp>
#include <zbpp/planner/replanner.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp {

/// Runs steps of a plan, and of better ones as measured costs move (`replanner`). All ranks run in
/// this process. Losses and weights are to the bit those of a pipeline that keeps its plan.
///
/// A new plan begins between two steps: the pipeline is made anew for the same stages, with its
/// training state. Where that fails, the old plan runs on, and `on_report` says so.
template <backend Backend>
class adaptive_pipeline {
 public:
  /// @param stages   as for `pipeline`; they must outlive it
  /// @param training  of optimizer steps
  /// @throws error as the constructors of `pipeline` and `replanner`
  template <class Stages>
  adaptive_pipeline(
      plan const& first,
      Backend backend,
      Stages&& stages,
      replan_settings settings = {},
      training_options const& training = {})
      : backend_(std::move(backend)),
        stages_(detail::refer_to<Stages>(stages)),
        training_(training),
        replanner_(first, std::move(settings)),
        pipeline_(make(first)) {}

  /// Runs a step, and decides which plan the next one runs.
  /// @return its result, which the next step overwrites
  /// @throws error as `pipeline::step`; (bad_argument) when not all ranks run in this process
  step_result const& step() {
    auto next = std::exchange(next_, std::nullopt);
    if (next) run_from_now_on(*next);
    auto const& result = pipeline_->step();
    for (int rank = 0; rank < result.measured.ranks(); ++rank)
      detail::require(
          !result.measured[rank].empty(),
          "adaptive_pipeline: not all ranks run in this process; use a replanner with what "
          "asio::gather_timeline gives, on all ranks");
    next_ = replanner_.after_step(result.measured);
    return result;
  }

  /// @return the pipeline that runs now, to evaluate, save and resume; a step that may switch plans
  ///         makes another one
  [[nodiscard]] pipeline<Backend>& current() noexcept { return *pipeline_; }
  /// @return every switch so far
  [[nodiscard]] std::vector<plan_switch> const& switches() const noexcept {
    return replanner_.switches();
  }
  /// @return what decides
  [[nodiscard]] replanner const& planner() const noexcept { return replanner_; }

 private:
  [[nodiscard]] std::unique_ptr<pipeline<Backend>> make(plan const& planned) {
    return std::make_unique<pipeline<Backend>>(planned, backend_, stages_, training_);
  }

  // The old one gives its memory back before the new one takes its own.
  void run_from_now_on(plan const& next) {
    auto const state = pipeline_->state();
    auto const old = pipeline_->planned();
    pipeline_.reset();
    try {
      pipeline_ = make(next);
    } catch (error const& refused) {
      replanner_.refuse_plan(refused.what());
      pipeline_ = make(old);
    }
    pipeline_->resume(state);
  }

  Backend backend_;
  std::vector<stage_ref> stages_;
  training_options training_;
  replanner replanner_;
  std::unique_ptr<pipeline<Backend>> pipeline_;
  std::optional<plan> next_;
};

template <class Backend, class Stages>
adaptive_pipeline(plan const&, Backend, Stages&&) -> adaptive_pipeline<Backend>;
template <class Backend, class Stages>
adaptive_pipeline(plan const&, Backend, Stages&&, replan_settings) -> adaptive_pipeline<Backend>;
template <class Backend, class Stages>
adaptive_pipeline(plan const&, Backend, Stages&&, replan_settings, training_options const&)
    -> adaptive_pipeline<Backend>;

}  // namespace zbpp
