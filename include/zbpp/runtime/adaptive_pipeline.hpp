// SPDX-License-Identifier: Apache-2.0
//
// A pipeline that plans again while it trains, and runs the better plan from the next step on.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/plans_by_count.hpp>
#include <zbpp/planner/replanner.hpp>
#include <zbpp/runtime/agreement.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/plan_runner.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace zbpp {

/// Runs steps of a plan, and of better ones as measured costs move (`replanner`). All ranks run in
/// this process, or `replan_settings::gather` says what those of others took, and all processes
/// make the same calls. Losses and weights are to the bit those of a pipeline that keeps its plan.
///
/// In a grid, pipelines that run one plan decide together, by the step of the slowest, and change
/// it after the same step; all of them are adaptive, with the same settings.
///
/// A new plan begins between two steps: the pipeline is made again for the same stages, with its
/// training state. Where that fails, the old plan runs on, and `on_report` says so; with one
/// process per rank the run is over, as after each failure.
template <backend Backend>
class adaptive_pipeline {
 public:
  /// @param stages   as for `pipeline`; they must outlive it
  /// @param training  of optimizer steps
  /// @throws error as the constructors of `pipeline` and `replanner`; (bad_argument) when searches
  ///         run in the background, or stages move, in a grid whose pipelines run one plan;
  ///         (no_agreement) when these have other settings
  template <class Stages>
  adaptive_pipeline(
      plan const& first,
      Backend backend,
      Stages&& stages,
      replan_settings settings = {},
      training_options const& training = {})
      : gathers_(static_cast<bool>(settings.gather)),
        runner_(std::make_unique<detail::plan_runner<Backend>>(
            first,
            std::move(backend),
            detail::refer_to<Stages>(stages),
            training,
            detail::plans_by_count(settings.search, settings.program))),
        replanner_(first, together(*runner_, std::move(settings))) {}

  /// Runs a step, and decides which plan the next one runs.
  /// @return its result, which the next step overwrites
  /// @throws error as `pipeline::step`; (bad_argument) when not all ranks run in this process, and
  ///         nothing gathers what they took
  step_result const& step() {
    if (is_new() || runner_->runs_count()) run_usual();
    auto const& result = runner_->current().step();
    for (int rank = 0; rank < result.measured.ranks(); ++rank)
      detail::require(
          gathers_ || !result.measured[rank].empty(),
          "adaptive_pipeline: not all ranks run in this process; set replan_settings::gather, such "
          "as to what asio::gather_timeline gives, on all ranks");
    static_cast<void>(replanner_.after_step(result.measured));
    return result;
  }

  /// Runs a step of another number of microbatches, such as the last one of an epoch. The first of
  /// a number takes as long as the search for its plan, which is kept. They decide no plan.
  /// @return its result, which the next step overwrites
  /// @throws error as `pipeline::step`; (unsupported_problem) when no order fits the memory limits
  step_result const& step(int microbatches) {
    auto const& usual = replanner_.current().problem();
    if (microbatches == usual.microbatches()) return step();
    runner_->run(usual, microbatches);
    return runner_->current().step();
  }
  /// Searches the plan of another number of microbatches now, so that no step has to wait for it.
  /// @throws error (bad_argument) when the number is below 1 or too large; (unsupported_problem)
  /// when
  ///         no order fits the memory limits
  void prepare(int microbatches) { runner_->prepare(replanner_.current().problem(), microbatches); }

  /// @return the pipeline that runs now, to evaluate, save and resume; a switch makes another one
  [[nodiscard]] pipeline<Backend>& current() { return runner_->current(); }
  [[nodiscard]] std::vector<plan_switch> const& switches() const noexcept {
    return replanner_.switches();
  }
  [[nodiscard]] replanner const& planner() const noexcept { return replanner_; }

 private:
  // Lets the pipelines of a grid that run one plan decide by one measured step.
  [[nodiscard]] static replan_settings together(
      detail::plan_runner<Backend>& runner, replan_settings settings) {
    bool const has_partners = !runner.partners().empty();
    if (!has_partners && !settings.gather) return settings;
    if (has_partners) {
      detail::require(
          !settings.in_background && !settings.moves_stages,
          "replan_settings: pipelines of a grid that run one plan change it together, after the "
          "same step, and stages stay on their ranks; set in_background and moves_stages to false");
      for (auto* const members : runner.partners())
        agree(
            *members,
            items_of(settings),
            "pipelines of a grid change plans together; give all the same");
    }
    settings.gather = [&runner, own = std::move(settings.gather), has_partners](
                          plan const& running, timeline const& measured) {
      auto line = measured;
      try {
        if (own) line = detail::named_call("gather", {}, [&] { return own(running, measured); });
      } catch (...) {
        if (has_partners) runner.fail(std::current_exception());
        throw;
      }
      return runner.longest(std::move(line));
    };
    return settings;
  }
  // What decides.
  [[nodiscard]] static std::vector<agreement_item> items_of(replan_settings const& s) {
    std::vector<agreement_item> items;
    auto const add = [&](char const* name, double value) {
      items.push_back(make_item(detail::joined("replan_settings::", name), number_text(value)));
    };
    add("first_steps", s.first_steps);
    add("window", s.window);
    add("least_steps", static_cast<double>(s.least_steps));
    add("band", s.band);
    add("least_gain", s.least_gain);
    add("message_quantile", s.message_quantile);
    add("search.seconds", s.search.seconds);
    return items;
  }

  // Whether the plan of the replanner has not run yet. Asked of it rather than remembered: what it
  // calls may throw.
  [[nodiscard]] bool is_new() const { return planned() != seen_; }
  // How many plans it has given so far, those that came back among them.
  [[nodiscard]] std::ptrdiff_t planned() const {
    auto const& all = replanner_.switches();
    return std::ssize(all) + std::ranges::count(all, true, &plan_switch::is_taken_back);
  }
  void run_usual() {
    bool const was_new = is_new();
    seen_ = planned();
    try {
      runner_->run(replanner_.current());
    } catch (...) {
      if (!was_new || !runner_->is_running()) throw;
      ++seen_;  // the old plan has come back
      replanner_.refuse_plan(detail::text_of(std::current_exception()));
      if (runner_->runs_count()) runner_->run(replanner_.current());
    }
  }

  bool gathers_;  // what ranks of other processes took
  std::unique_ptr<detail::plan_runner<Backend>> runner_;
  replanner replanner_;
  std::ptrdiff_t seen_ = 0;  // how many of its plans have run
};

template <class Backend, class Stages>
adaptive_pipeline(plan const&, Backend, Stages&&) -> adaptive_pipeline<Backend>;
template <class Backend, class Stages>
adaptive_pipeline(plan const&, Backend, Stages&&, replan_settings) -> adaptive_pipeline<Backend>;
template <class Backend, class Stages>
adaptive_pipeline(plan const&, Backend, Stages&&, replan_settings, training_options const&)
    -> adaptive_pipeline<Backend>;

}  // namespace zbpp
