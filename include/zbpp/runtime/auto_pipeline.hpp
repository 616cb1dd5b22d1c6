// SPDX-License-Identifier: Apache-2.0
//
// From layers to a running pipeline in one call: cut, placed, ordered, and planned again while it
// trains. And what layers cost, by running them.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/plans_by_count.hpp>
#include <zbpp/planner/detail/stage_per_layer.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/replanner.hpp>
#include <zbpp/runtime/adaptive_pipeline.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/plan_runner.hpp>
#include <zbpp/runtime/measure.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/stage.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp {

/// Models what makes stages: called with the first layer of a stage and the one after its last, it
/// returns the stage.
template <class Make>
concept stage_maker =
    std::invocable<Make const&, int, int> && stage<std::invoke_result_t<Make const&, int, int>>;

namespace detail {

/// Owns stages, which need not move, and refers to them.
template <stage Stage>
struct owned_stages {
  std::vector<std::unique_ptr<Stage>> all;
  std::vector<stage_ref> refs;

  /// Makes the stage of some layers.
  template <stage_maker Make>
  void add(Make const& make_stage, int first, int end) {
    all.emplace_back(new Stage(make_stage(first, end)));
    refs.emplace_back(*all.back());
  }
};

}  // namespace detail

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
  /// Called with a line for each choice and each later event.
  std::function<void(std::string const&)> on_report = {};
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
  /// @throws error as `find_plan` and the constructors of `pipeline` and `adaptive_pipeline`;
  ///         (bad_argument) when `auto_settings::rank` is none of the placement
  template <stage_maker Make>
  auto_pipeline(
      problem const& model, Backend backend, Make const& make_stage, auto_settings settings = {})
      : chosen_(choose(model, settings)) {
    if (settings.on_report) settings.on_report(to_text(chosen_));
    auto const runs = moves_stages(settings) ? detail::stage_per_layer(chosen_) : chosen_;
    auto const& placed = runs.problem.placement();
    detail::require(
        !settings.rank || (*settings.rank >= 0 && *settings.rank < placed.ranks()),
        "auto_settings::rank is no rank of the placement; ranks count from 0");
    auto const first = runs.problem.first_layer();
    for (int s = 0; s < placed.stages(); ++s)
      if (!settings.rank || placed.rank_of(s) == *settings.rank)
        stages_.add(make_stage, first[detail::index(s)], runs.problem.end_layer(s));
    auto const planned = make_plan("auto-plan", runs.schedule, runs.problem, settings.program);
    if (!settings.replan || (settings.rank && !settings.replan->gather)) {
      usual_.emplace(planned);
      fixed_.emplace(
          planned,
          std::move(backend),
          stages_.refs,
          settings.training,
          detail::plans_by_count(settings.plan.search(), settings.program));
      return;
    }
    settings.replan->program = settings.program;
    if (!settings.replan->on_report) settings.replan->on_report = settings.on_report;
    adaptive_.emplace(
        planned, std::move(backend), stages_.refs, std::move(*settings.replan), settings.training);
  }

  /// Runs a step. @return its result, which the next step overwrites
  /// @throws error as `pipeline::step`
  step_result const& step() {
    if (adaptive_) return adaptive_->step();
    if (fixed_->runs_count()) fixed_->run(*usual_);
    return fixed_->current().step();
  }
  /// Runs a step of another number of microbatches, as `adaptive_pipeline::step` does.
  step_result const& step(int microbatches) {
    if (adaptive_) return adaptive_->step(microbatches);
    if (microbatches == usual_->problem().microbatches()) return step();
    fixed_->run(usual_->problem(), microbatches);
    return fixed_->current().step();
  }

  [[nodiscard]] pipeline<Backend>& current() {
    return adaptive_ ? adaptive_->current() : fixed_->current();
  }
  [[nodiscard]] std::vector<plan_switch> switches() const {
    return adaptive_ ? adaptive_->switches() : std::vector<plan_switch>{};
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

  found_plan chosen_;
  detail::owned_stages<Stage> stages_;
  std::optional<adaptive_pipeline<Backend>> adaptive_;
  std::optional<plan> usual_;  // where it stays
  std::optional<detail::plan_runner<Backend>> fixed_;
};

template <class Backend, class Make>
auto_pipeline(problem const&, Backend, Make const&)
    -> auto_pipeline<Backend, std::invoke_result_t<Make const&, int, int>>;
template <class Backend, class Make>
auto_pipeline(problem const&, Backend, Make const&, auto_settings)
    -> auto_pipeline<Backend, std::invoke_result_t<Make const&, int, int>>;

/// Measures what each layer takes: runs one stage for each, all on one rank and one microbatch
/// after another, with B and W apart. Sizes, transfers and limits stay as they are stated.
///
/// It trains the stages that it makes: let `make_stage` give copies, or restore parameters.
/// @param make_stage  called for each layer, with its number and the next one
/// @throws error as `measure`
template <backend Backend, stage_maker Make>
[[nodiscard]] problem measure_layers(
    problem const& stated,
    Backend backend,
    Make const& make_stage,
    measure_options const& options = {}) {
  auto const layers = static_cast<int>(stated.layers().size());
  constexpr int microbatches = 4;
  std::vector<pass> in_turn;
  for (int m = 0; m < microbatches; ++m) {
    for (int s = 0; s < layers; ++s) in_turn.push_back({pass_kind::forward, s, m});
    for (int s = layers - 1; s >= 0; --s)
      for (auto const kind : {pass_kind::backward_input, pass_kind::backward_weight})
        in_turn.push_back({kind, s, m});
  }
  auto const on_one_rank = placement::custom(std::vector<int>(detail::index(layers), 0));
  std::vector<layer_costs> costs(stated.layers().begin(), stated.layers().end());
  problem const line(on_one_rank, microbatches, costs);
  detail::owned_stages<std::invoke_result_t<Make const&, int, int>> stages;
  for (int s = 0; s < layers; ++s) stages.add(make_stage, s, s + 1);
  pipeline<Backend> pipe(
      make_plan(
          "measuring",
          schedule(on_one_rank, microbatches, std::vector<std::vector<pass>>{in_turn}),
          line,
          {.step = step_kind::none}),
      std::move(backend),
      stages.refs);
  auto const found = measure(pipe, options);
  return with_layers(stated, {found.all_costs().begin(), found.all_costs().end()});
}

}  // namespace zbpp
