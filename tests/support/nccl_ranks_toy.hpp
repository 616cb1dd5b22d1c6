// SPDX-License-Identifier: Apache-2.0
//
// What ranks of the toy network need that are processes to each other, each with a GPU of the
// model.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/nccl/settings.hpp>

#include <support/cuda_model/cuda_model.hpp>
#include <support/cuda_toy.hpp>

#include <cstdint>

namespace zbpp::test {

/// @return a machine with a GPU for each rank
[[nodiscard]] inline cuda_model::options machine_of(int ranks, std::uint64_t seed) {
  return {.seed = seed, .devices = ranks, .connections = 256, .hosts = ranks};
}

/// @return settings for a rank on its own GPU
[[nodiscard]] inline nccl::ranks_settings settings_of(plan const& planned, int rank) {
  nccl::ranks_settings settings;
  settings.device = {.device = rank};
  settings.edges = toy::edge_shapes(planned.problem());
  return settings;
}

}  // namespace zbpp::test
