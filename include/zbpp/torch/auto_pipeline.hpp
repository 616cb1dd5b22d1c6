// SPDX-License-Identifier: Apache-2.0
//
// From a model of LibTorch to a running pipeline in one call: measured, cut, placed, ordered, and
// planned again while it trains.
#pragma once

#include <zbpp/adapt/auto_pipeline.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/grid.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/torch/layer.hpp>
#include <zbpp/torch/measure_layers.hpp>
#include <zbpp/torch/module_stage.hpp>
#include <zbpp/torch/parameters.hpp>
#include <zbpp/torch/tensors.hpp>

#include <concepts>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::torch {

/// Models what makes the optimizer of a stage of its parameters: what a `module_stage` takes as its
/// third argument, such as a `std::shared_ptr<torch::optim::AdamW>`. It is called once for each
/// stage, in the order of the model.
template <class Make>
concept optimizer_maker = std::invocable<Make const&, tensors const&>;

/// Models where processes meet that share costs: an `asio::rendezvous`, once
/// <zbpp/asio/measure.hpp> is included.
template <class Rendezvous>
concept shares_costs =
    requires(Rendezvous& meeting, std::vector<layer_costs> const& own, std::string text) {
      { meeting.rank() } -> std::convertible_to<int>;
      { meeting.ranks() } -> std::convertible_to<int>;
      { broadcast_costs(meeting, own) } -> std::same_as<std::vector<layer_costs>>;
      meeting.fail(text);
    };

/// Runs some layers of a model as a stage.
template <class Step>
class layer_stage : public module_stage<Step> {
 public:
  layer_stage(layer_sequence layers, stage_ends const& ends, Step step, recompute_options recompute)
      : module_stage<Step>(layers, ends, std::move(step), recompute), layers_(std::move(layers)) {}

  [[nodiscard]] layer_sequence const& layers() const noexcept { return layers_; }

 private:
  layer_sequence layers_;
};

/// Says how a pipeline is made of a model. What is left open is measured or searched.
struct auto_settings {
  /// How many ranks a pipeline has; 0 for those of `pipeline.plan.placement`, or its processes.
  int ranks = 0;
  int microbatches = 0;    ///< of a step; at least 1
  int kernel_threads = 1;  ///< that the kernels of a rank use, and those of layers being measured
  measure_options measure = {};
  /// Of each layer, such as what `measure_layers` gave; measured where there are none.
  std::vector<layer_costs> costs = {};
  transfer_costs transfer = {};           ///< what messages between ranks take
  std::vector<bytes> memory_limits = {};  ///< none, one for all ranks, or one per rank
  std::vector<double> rank_speeds = {};   ///< beside what was measured; none, or one per rank
  /// How many tensors of the size of a parameter its optimizer keeps, as Adam keeps 2: with the
  /// parameter and its gradient they are the `static_memory` of a layer that is measured.
  int optimizer_tensors = 2;
  /// The leaves of a parameter that layers share, `tied_parameter::leaves()`, for optimizers, too.
  tensors tied = {};
  recompute_options recompute = {};  ///< of all stages
  /// Calls `keep_freed_memory()` for the process, unless the environment states its thresholds
  /// (MALLOC_..._THRESHOLD_, GLIBC_TUNABLES). Set it to false where the program has its own.
  bool keeps_freed_memory = true;
  /// What of the plan is fixed by hand, how stages step, and when to plan again.
  zbpp::auto_settings pipeline = {};
};

namespace detail {

/// Checks a model and settings before anything runs, settles the ranks, and keeps freed memory.
/// @throws error (bad_argument) saying what is wrong and what to do
void prepare(layer_sequence const& model, auto_settings& settings);
/// Measures the layers on microbatch 0, and adds what their parameters take.
[[nodiscard]] std::vector<layer_costs> measure_model(
    layer_sequence const& model, stage_ends const& ends, auto_settings const& settings);
/// @return the model with its costs, whether they were measured or stated
[[nodiscard]] problem problem_of(layer_sequence const& model, auto_settings const& settings);

template <backend Backend, optimizer_maker Make>
[[nodiscard]] auto make_auto_pipeline(
    layer_sequence const& model,
    Backend by,
    stage_ends const& ends,
    Make const& make_optimizer,
    auto_settings const& settings,
    int replicas = 1) {
  auto const make_stage = [&](int first, int end) {
    auto const part = model.part(first, end);
    return layer_stage(part, ends, make_optimizer(part.parameters()), settings.recompute);
  };
  auto const problem = with_replicas(problem_of(model, settings), {.count = replicas});
  return zbpp::auto_pipeline(problem, std::move(by), make_stage, settings.pipeline);
}

}  // namespace detail

/// Makes a running pipeline of a model: measures its layers, chooses placement, cut and order,
/// makes the stages with their optimizers, and plans again while it trains. Ranks are threads of
/// this process, and train the parameters of the model. Losses and weights are to the bit those of
/// a plain loop whose kernels use as many threads, whatever is chosen.
///
/// Layers are measured by `measure_layers`, which leaves the model as it was, on microbatch 0 of
/// step 0: `ends.batch` is called once for it, `ends.loss` as often as the last layer runs. What
/// stays in the process is what `auto_settings::keeps_freed_memory` says.
/// @return a `zbpp::auto_pipeline` of `layer_stage`s. Its `on_report` gets a line for what was
///         measured, one for what was chosen, and one for each later event
/// @throws error (bad_argument) when there are no layers or fewer than stages, two layers share a
///         parameter, or a setting is out of range; as `measure_layers`, such as for inputs that
///         the first layer does not take; as `zbpp::auto_pipeline`
template <optimizer_maker Make>
[[nodiscard]] auto auto_pipeline(
    layer_sequence const& model,
    stage_ends const& ends,
    Make const& make_optimizer,
    auto_settings settings) {
  detail::prepare(model, settings);
  if (settings.costs.empty()) settings.costs = detail::measure_model(model, ends, settings);
  threads const ranks{.on_thread_start = intra_op_threads(settings.kernel_threads)};
  return detail::make_auto_pipeline(model, ranks, ends, make_optimizer, settings);
}

/// Makes the part of such a pipeline that this process runs. All processes of a run call it with
/// the same model and settings. Rank 0 measures while the others wait, and all get its costs, hence
/// the same plan. It stays, unless `pipeline.replan` has a `gather`; then orders follow the
/// measured costs, and stages keep their ranks. The pipeline keeps the layers of its own stages:
/// where the model is a temporary, all others are freed. Where the backend is in a grid, each of
/// its pipelines is a replica, and optimizers are such as replicas can add gradients up for.
/// @param meeting  an `asio::rendezvous`, whose `collective_deadline` outlasts measuring
/// @param by       the backend: an `asio::tcp`, with `intra_op_threads`
/// @throws error as above, and then the run has failed for all processes, with the same text
template <shares_costs Rendezvous, backend Backend, optimizer_maker Make>
[[nodiscard]] auto auto_pipeline(
    Rendezvous& meeting,
    Backend by,
    layer_sequence model,
    stage_ends const& ends,
    Make const& make_optimizer,
    auto_settings settings) {
  grid_layout const* grid = nullptr;
  if constexpr (requires { by.layout(); }) grid = by.layout();
  try {
    settings.pipeline.rank = grid ? grid->coordinates(meeting.rank()).pipeline : meeting.rank();
    if (settings.ranks == 0)
      settings.ranks = grid ? grid->size(grid_axis::pipeline) : meeting.ranks();
    detail::prepare(model, settings);
    if (settings.costs.empty()) {
      std::vector<layer_costs> measured;
      if (meeting.rank() == 0) measured = detail::measure_model(model, ends, settings);
      settings.costs = broadcast_costs(meeting, measured);
    }
    auto const replicas = grid ? grid->size(grid_axis::data) : 1;
    return detail::make_auto_pipeline(
        model, std::move(by), ends, make_optimizer, settings, replicas);
  } catch (std::exception const& failed) {
    meeting.fail(zbpp::detail::text_of(failed));  // no rank waits for this one
    throw;
  }
}

}  // namespace zbpp::torch

#include <zbpp/torch/impl/auto_pipeline.ipp>
