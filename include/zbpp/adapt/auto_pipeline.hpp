// SPDX-License-Identifier: Apache-2.0
//
// From layers to a running pipeline in one call: cut, placed, ordered, and planned again while it
// trains.
#pragma once

#include <zbpp/adapt/detail/plans_by_count.hpp>
#include <zbpp/adapt/replanner.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/detail/stage_per_layer.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/measure_layers.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>

#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp {

/// Says how a pipeline is made of layers.
struct auto_settings {
  plan_choices plan = {};          ///< what is fixed by hand
  lower_options program = {};      ///< of the plan and of those that follow it
  training_options training = {};  ///< of optimizer steps
  /// When to plan again while it trains; nothing for a plan that stays. With `moves_stages` each
  /// layer is a stage, and no plan recomputes or has F and B in pairs.
  std::optional<replan_settings> replan = replan_settings{};
  /// The rank of this process where the others have processes of their own; nothing where all run
  /// here. With it only its stages are made, and without `replan_settings::gather` the plan stays.
  std::optional<int> rank = {};
  report_call on_report = {};  ///< gets a line for each choice and each later event
};

/// Owns the stages of a model and runs them: all of them, or those of one rank, where the other
/// ranks have processes of their own. Then each process makes one of the same model and settings,
/// which gives all the same plan.
template <backend Backend, stage Stage>
class auto_pipeline {
 public:
  /// Cuts the layers into stages on a placement, makes the stages, and gets everything ready.
  /// @param model  the layers with their costs, stated or from `measure_layers`. Its placement is
  ///               one of those that are tried, and says how many ranks there are
  /// @param make_stage  called once for each stage that runs here, in the order of the model
  /// @throws error as `find_plan` and the constructors of `pipeline` and `replanner`;
  ///         (bad_argument) when the model has no layers, or `auto_settings::rank` is none of the
  ///         placement
  template <stage_maker Make>
  auto_pipeline(
      problem const& model, Backend backend, Make const& make_stage, auto_settings settings = {})
      : chosen_(choose(model, settings)),
        usual_(make_plan(
            moves_stages(settings) ? detail::stage_per_layer(chosen_) : chosen_, settings.program)),
        counts_(settings.plan.search()) {
    if (settings.on_report) settings.on_report(to_text(chosen_));
    auto const& cut = usual_.problem();
    auto const& placed = cut.placement();
    detail::require(
        !settings.rank || (*settings.rank >= 0 && *settings.rank < placed.ranks()),
        "auto_settings::rank is no rank of the placement; ranks count from 0");
    for (int s = 0; s < placed.stages(); ++s)
      if (!settings.rank || placed.rank_of(s) == *settings.rank)
        stages_.add(make_stage, cut.first_layer()[detail::index(s)], cut.end_layer(s));
    pipe_.emplace(usual_, std::move(backend), stages_.refs, settings.training);
    if (settings.replan && (!settings.rank || settings.replan->gather))
      again_.emplace(*pipe_, std::move(*settings.replan), std::move(settings.on_report));
  }

  /// Runs a step, and decides which plan the next one runs.
  /// @return its result, which the next step overwrites
  /// @throws error as `pipeline::step`
  step_result const& step() {
    if (again_)
      again_->apply_to(*pipe_);
    else if (pipe_->planned().schedule() != usual_.schedule())
      pipe_->take(usual_);
    auto const& result = pipe_->step();
    if (again_) static_cast<void>(again_->after(result));
    return result;
  }
  /// Runs a step of another number of microbatches, such as the last one of an epoch. The first of
  /// a number takes as long as the search for its plan, which is kept. They decide no plan.
  /// @return its result, which the next step overwrites
  /// @throws error as `pipeline::step`; (bad_argument) when the number is below 1 or too large;
  ///         (unsupported_problem) when no order fits the memory limits
  step_result const& step(int microbatches) {
    if (microbatches == usual().problem().microbatches()) return step();
    auto const& planned = counts_.plan_for(usual(), microbatches);
    if (pipe_->planned().schedule() != planned.schedule()) pipe_->take(planned);
    return pipe_->step();
  }
  /// Searches the plan of another number of microbatches now, so that no step has to wait for it.
  /// @throws error as `step`
  void prepare(int microbatches) { static_cast<void>(counts_.plan_for(usual(), microbatches)); }

  /// @return the pipeline that runs, to evaluate, save and resume
  [[nodiscard]] pipeline<Backend>& current() { return *pipe_; }
  [[nodiscard]] std::vector<plan_switch> switches() const {
    return again_ ? again_->switches() : std::vector<plan_switch>{};
  }
  /// @return what was chosen first, with stages of all layers that follow one another on a rank
  [[nodiscard]] found_plan const& chosen() const noexcept { return chosen_; }
  /// @return how many stages were made: those of this process
  [[nodiscard]] int stages() const noexcept { return static_cast<int>(stages_.all.size()); }
  /// @return a stage of this process, counted in the order of the model
  [[nodiscard]] Stage& stage_at(int number) noexcept { return *stages_.all[detail::index(number)]; }

 private:
  [[nodiscard]] static bool moves_stages(auto_settings const& settings) {
    return settings.replan && !settings.rank && settings.replan->moves_stages;
  }
  [[nodiscard]] static found_plan choose(problem const& model, auto_settings const& settings) {
    detail::require(
        !model.layers().empty(), "auto_pipeline needs layers; the problem states stages");
    return find_plan(moves_stages(settings) ? detail::plain_layers(model) : model, settings.plan);
  }

  [[nodiscard]] plan const& usual() const noexcept { return again_ ? again_->current() : usual_; }

  found_plan chosen_;
  plan usual_;  // the first one
  detail::plans_by_count counts_;
  detail::owned_stages<Stage> stages_;
  std::optional<pipeline<Backend>> pipe_;
  std::optional<replanner> again_;
};

template <class Backend, class Make>
auto_pipeline(problem const&, Backend, Make const&)
    -> auto_pipeline<Backend, std::invoke_result_t<Make const&, int, int>>;
template <class Backend, class Make>
auto_pipeline(problem const&, Backend, Make const&, auto_settings)
    -> auto_pipeline<Backend, std::invoke_result_t<Make const&, int, int>>;

}  // namespace zbpp
