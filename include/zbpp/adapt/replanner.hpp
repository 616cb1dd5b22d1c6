// SPDX-License-Identifier: Apache-2.0
//
// Plans again while a pipeline trains: watches measured steps, looks for another order, and for
// other ranks of stages, where their costs have left those of the plan, and judges afterwards
// whether it paid. `pipeline::take` runs what it finds.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/search.hpp>
#include <zbpp/runtime/step_result.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace zbpp {

class pipeline_core;

/// Says when to plan again, and which plans to run.
struct replan_settings {
  /// How many steps are not measured at the beginning and after each switch, at least 0.
  int first_steps = 3;
  /// How many measured steps are judged together, by their medians, at least 1.
  int window = 10;
  /// How far the work of a stage, or the predicted cost of the step, may move from what the plan
  /// was made for, as a share of it, before a search begins; more than 0.
  double band = 0.05;
  /// The share of the step that another plan must be predicted to save, at least 0.
  double least_gain = 0.02;
  /// How many steps lie between two switches at least.
  std::int64_t least_steps = 50;
  /// Whether stages may change ranks, so that a slow rank gets fewer of them. They must be objects
  /// that any rank may run. `find_plan` cuts them again, as layers, and may choose another
  /// placement; give the first plan many small stages, such as one per layer
  /// (`plan_choices::stage_per_layer`).
  bool moves_stages = false;
  /// Whether searches run on a thread of their own, beside the steps. Otherwise a step waits for
  /// them, and what happens does not depend on how fast the machine is.
  bool in_background = true;
  /// Of the times of messages that ranks waited for, the share that the time of a message is above.
  double message_quantile = 0.02;
  /// Where ranks have processes of their own: gives the passes of all ranks in a measured step, on
  /// one clock, of those of this process, as `asio::gather_timeline` does. Called for each step at
  /// the end of a window, so that all processes know the same and decide alike. It needs
  /// `in_background` to be false, and stages stay on their ranks.
  std::function<timeline(plan const& running, timeline const& own)> gather = {};
  double seconds = search_settings{}.seconds;  ///< budget of a search, as in `search_settings`
  std::uint64_t seed = search_settings{}.seed;
  /// Called now and then by a search that a step waits for.
  std::function<void(search_progress const&)> on_progress = {};
};

/// A change from one plan to another.
struct plan_switch {
  std::int64_t step = 0;        ///< the first step of the new plan, counted from 0
  ticks before = 0;             ///< the median step under the old plan
  ticks foreseen_old = 0;       ///< what the old order costs with the measured costs
  ticks foreseen = 0;           ///< what the new order costs with them
  ticks after = 0;              ///< the median step under the new plan; 0 until it is known
  bool is_taken_back = false;   ///< whether the step was no shorter, and the old plan runs again
  std::vector<int> moved = {};  ///< stages that changed their rank, ascending

  friend bool operator==(plan_switch const&, plan_switch const&) = default;
};

/// Gets a line for each event; called by the thread that steps.
using report_call = std::function<void(std::string const&)>;

/// Decides, from one measured step after another, which plan runs next.
///
///     replanner again(pipe, {.least_gain = 0.05});
///     while (more())
///       if (auto const better = again.after(pipe.step())) pipe.take(*better);
///
/// Orders are searched by `greedy_auto` on the placement of the first plan and within the memory
/// limits of its problem; where stages may change ranks, by `find_plan`, for ranks as fast as they
/// were measured beside the first plan. W of each stage stays in ascending microbatch,
/// so the bits of a training do not depend on which plans run.
class replanner {
 public:
  /// Decides for a pipeline, which must outlive it. In a grid, pipelines that run one plan decide
  /// together, by the step of the slowest, and change it after the same step; all of them have a
  /// replanner with the same settings.
  /// @throws error as below; (bad_argument) also when searches run in the background, or stages
  ///         move, in a grid whose pipelines run one plan; (no_agreement) when these have other
  ///         settings
  explicit replanner(
      pipeline_core& pipe, replan_settings settings = {}, report_call on_report = {});
  /// Decides for a loop of its own that runs a plan.
  /// @param on_report  what it throws, `after` throws; `current` is what comes next all the same
  /// @throws error (bad_argument) for a setting that is out of range, or when two contradict each
  ///         other; (unsupported_problem) when stages may change ranks and the first plan
  ///         recomputes or has F and B in pairs
  explicit replanner(plan const& first, replan_settings settings = {}, report_call on_report = {});
  replanner(replanner&&) noexcept;
  replanner& operator=(replanner&&) noexcept;
  /// Stops a search that runs.
  ~replanner();

  /// Takes the next step of the plan that runs.
  /// @param measured  the passes of all ranks, on one clock; with `gather` those of this process
  /// @return the plan to run from the next step on, or nothing
  /// @throws error (bad_argument) when the step is not one of the plan that runs, or not all ranks
  ///         run in this process and nothing gathers what they took. A search that fails is
  ///         reported, and the plan stays
  [[nodiscard]] std::optional<plan> after(timeline const& measured);
  [[nodiscard]] std::optional<plan> after(step_result const& step) { return after(step.measured); }

  /// Says that the plan that `after` gave cannot run, and why; the one before runs on.
  /// @return whether there is one before: false once the last plan was judged
  bool refuse_plan(std::string const& why);

  /// Has a pipeline run the plan that comes next, if it runs another one. A plan that cannot run is
  /// refused, and the one before goes on.
  /// @throws as `pipeline::take` where there is none before
  void apply_to(pipeline_core& pipe);

  [[nodiscard]] plan const& current() const noexcept;
  [[nodiscard]] std::vector<plan_switch> const& switches() const noexcept;
  /// @return the costs that were last measured; of the first plan until then
  [[nodiscard]] problem const& costs() const noexcept;

 private:
  class watch;

  std::unique_ptr<watch> watch_;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/adapt/impl/replanner.ipp>
#endif
