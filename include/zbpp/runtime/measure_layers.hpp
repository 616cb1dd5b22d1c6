// SPDX-License-Identifier: Apache-2.0
//
// What layers cost, by running them, one stage for each.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/measure.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/stage.hpp>

#include <concepts>
#include <memory>
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
