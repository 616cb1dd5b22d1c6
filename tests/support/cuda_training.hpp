// SPDX-License-Identifier: Apache-2.0
//
// Trainings of the toy network on the model of CUDA, checked for their bits, for what the model
// finds wrong, and for what they leave behind.
#pragma once

#include <zbpp/cuda/device.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/cuda_model/cuda_model.hpp>
#include <support/cuda_toy.hpp>
#include <support/policy_grid.hpp>
#include <support/toy_history.hpp>

#include <string>
#include <vector>

namespace zbpp::test {

/// @return costs of a stage of the toy network
[[nodiscard]] inline stage_costs launched_costs() {
  auto costs = uneven_costs();
  costs.edge = toy::edge;
  return costs;
}

/// @return a plan of ZB-H1 for ranks in a row
[[nodiscard]] inline plan row_plan(int ranks, int microbatches) {
  return make_plan(zb_h1{}, problem(placement::linear(ranks), microbatches, launched_costs(), 87));
}

/// @return the first fault, or nothing
[[nodiscard]] inline std::string first_of(std::vector<std::string> const& faults) {
  return faults.empty() ? "" : faults.front();
}

/// Trains on GPUs.
[[nodiscard]] inline toy::history train_on(plan const& planned, cuda::device backend) {
  auto all = toy::make_model(planned.problem().stages());
  std::vector<toy::launched_stage> stages(all.begin(), all.end());
  backend.edges = toy::edge_shapes(planned.problem());
  pipeline pipe{planned, backend, stages};
  return toy::train(all, [&](int) { return pipe.step().losses; });
}

/// Trains under one interleaving and checks bits, faults and what is left behind.
inline void check_training(
    plan const& planned,
    toy::history const& expected,
    cuda_model::options const& machine,
    cuda::device const& backend = {}) {
  cuda_model::reset(machine);
  bool const is_right = train_on(planned, backend) == expected;
  INFO("interleaving " << machine.seed);
  CHECK(is_right);
  CHECK(first_of(cuda_model::faults()) == "");
  CHECK(first_of(cuda_model::leaks()) == "");
}

}  // namespace zbpp::test
