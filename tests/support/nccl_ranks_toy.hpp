// SPDX-License-Identifier: Apache-2.0
//
// What ranks of the toy network need that are processes to each other, each with a GPU of the
// model.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/nccl/device_needs.hpp>
#include <zbpp/nccl/settings.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_toy.hpp>
#include <support/environment_variable.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace zbpp::test {

/// Options with which any number of hardware queues is enough.
inline lower_options const for_one_queue{.layout = channel_layout::one_per_rank};

/// @return a machine with a GPU for each rank, of each replica, each in a process apart. The seed
/// chooses among the
///         numbers of hardware queues with which the plan is safe, and how streams are mapped to
///         them
[[nodiscard]] inline cuda_model::options machine_of(
    plan const& planned,
    std::uint64_t seed,
    channel_layout layout = channel_layout::one_per_directed_pair) {
  auto const ranks = planned.problem().ranks() * planned.problem().replicas().count;
  auto const needed = nccl::hardware_queues(planned.program(), layout);
  std::vector<int> counts;
  for (int count : {1, 3, 8, 32})
    if (count >= needed.most()) counts.push_back(count);
  cuda_model::options machine{
      .seed = seed,
      .devices = ranks,
      .connections = counts.at(static_cast<std::size_t>(seed % counts.size())),
      .hosts = ranks};
  if (needed.reason.empty())
    machine.mapping = static_cast<cuda_model::queue_mapping>(seed / counts.size() % 3);
  return machine;
}

/// Starts the model anew, and says in the environment, for good, how many hardware queues it has.
inline void reset_gpus(cuda_model::options const& machine) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(machine.connections).c_str(), 1);
  cuda_model::reset(machine);
}

/// The same for a part of a test, as `checked_gpus`.
struct checked_ranks : checked_gpus {
  explicit checked_ranks(cuda_model::options const& machine)
      : checked_gpus(machine),
        queues("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(machine.connections).c_str()) {}

  environment_variable const queues;
};

/// @return settings for a rank on its own GPU
[[nodiscard]] inline nccl::ranks_settings settings_of(plan const& planned, int rank) {
  nccl::ranks_settings settings;
  settings.device = {.device = rank};
  settings.edges = toy::edge_shapes(planned.problem());
  return settings;
}

}  // namespace zbpp::test
