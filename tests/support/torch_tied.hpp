// SPDX-License-Identifier: Apache-2.0
//
// A model three of whose four slices share a parameter, and how it trains in a plain loop.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/policy/zb_v.hpp>

#include <support/torch_training.hpp>

#include <numeric>
#include <vector>

namespace zbpp::test {

constexpr int tied_steps = 6;
constexpr int tied_microbatches = 4;

struct tied_model {
  torch_model slices;
  zbpp::torch::tied_parameter tied;
};

/// Makes the same model each time, in one, two or four slices.
[[nodiscard]] inline tied_model make_tied_model(int stages) {
  auto const model = mlp_model(run_seed(), 4, 2, 6, 3);
  auto const& all = model.slices;
  return {
      in_stages(model, stages),
      zbpp::torch::tied_parameter(
          {all[0].parameters[0], all[2].parameters[2], all[3].parameters[0]})};
}

/// @return one and two ranks, in a line and in a V
[[nodiscard]] inline std::vector<placement> tied_placements() {
  return {placement::linear(1), placement::v_shape(1), placement::linear(2), placement::v_shape(2)};
}

[[nodiscard]] inline plan tied_plan(placement const& placement, step_kind kind) {
  auto const count = placement.stages();
  std::vector<stage_costs> costs(static_cast<std::size_t>(count), {.forward = 10});
  auto const size = make_tied_model(count).tied.size();
  for (int slice : {0, 2, 3}) costs[static_cast<std::size_t>(slice * count / 4)].tied = size;
  problem const problem(placement, tied_microbatches, costs, 1);
  return placement.is_v_shape() ? make_plan(zb_v{}, problem, {.step = kind})
                                : make_plan(zb_h2{}, problem, {.step = kind});
}

[[nodiscard]] inline std::vector<int> all_stages(plan const& planned) {
  std::vector<int> all(static_cast<std::size_t>(planned.problem().stages()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Trains in one process without a pipeline.
[[nodiscard]] inline torch_outcome tied_plain_loop(training_options const& options) {
  auto const model = make_tied_model(1);
  plain_steps optimizer(parameters_of(model.slices), options, model.tied.leaves());
  torch_outcome made;
  for (int step = 0; step < tied_steps; ++step) {
    auto const losses = plain_microbatches(model.slices, step, tied_microbatches);
    made.losses.insert(made.losses.end(), losses.begin(), losses.end());
    model.tied.sum_gradients();
    optimizer.step();
  }
  made.weights = weights_of(model.slices);
  return made;
}

}  // namespace zbpp::test
