// SPDX-License-Identifier: Apache-2.0
//
// Trainings of the toy network on the model of CUDA, checked for their bits, for what the model
// finds wrong, and for what they leave behind.
#pragma once

#include <zbpp/cuda/device.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_toy.hpp>
#include <support/policy_grid.hpp>
#include <support/same_bits.hpp>
#include <support/toy_history.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test {

/// @return costs of a stage of the toy network
[[nodiscard]] inline stage_costs launched_costs() {
  auto costs = uneven_costs();
  costs.edge = toy::edge;
  return costs;
}

/// @return a plan of ZB-H1 for ranks in a row
[[nodiscard]] inline plan row_plan(int ranks, int microbatches, lower_options const& options = {}) {
  return make_plan(
      zb_h1{}, problem(placement::linear(ranks), microbatches, launched_costs(), 87), options);
}

/// A training of the toy network on GPUs.
class launched_training {
 public:
  explicit launched_training(plan const& planned, cuda::device backend = {})
      : all_(toy::make_model(planned.problem().stages())), stages_(all_.begin(), all_.end()) {
    backend.edges = toy::edge_shapes(planned.problem());
    pipe_.emplace(planned, backend, stages_);
  }
  launched_training(launched_training const&) = delete;
  launched_training& operator=(launched_training const&) = delete;

  [[nodiscard]] pipeline<cuda::device>& pipe() noexcept { return *pipe_; }
  [[nodiscard]] toy::model& model() noexcept { return all_; }
  /// Runs some steps, after each of which the host updates the weights.
  [[nodiscard]] toy::history train() {
    return toy::train(all_, [&](int) { return pipe_->step().losses; });
  }

 private:
  toy::model all_;
  std::vector<toy::launched_stage> stages_;
  std::optional<pipeline<cuda::device>> pipe_;
};

/// Runs something that trains under one interleaving.
/// @param run  returns what was wrong
/// @return that, and the first fault and the first leak
template <class Run>
[[nodiscard]] std::string trouble_in(cuda_model::options const& machine, Run const& run) {
  cuda_model::reset(machine);
  auto const trouble = run();
  return trouble + first_of(cuda_model::faults()) + first_of(cuda_model::leaks());
}

/// @return what one process makes of a plan, with losses as a device gives them
[[nodiscard]] inline toy::history device_reference(plan const& planned) {
  return toy::in_single_precision(toy::train_reference(planned));
}

/// @return a way in which the suite `same_bits` trains on GPUs, with the seed of the run; it leaves
///         nothing wrong and nothing behind
[[nodiscard]] inline way<toy::history> on_gpu(
    std::string name, cuda_model::options machine, cuda::device backend = {}, int times = 1) {
  auto const run = [=](plan const& planned, std::uint64_t seed) mutable {
    machine.seed = seed;
    checked_gpus const gpus(machine);
    return launched_training(planned, backend).train();
  };
  return {std::move(name), run, times};
}
/// @return the same with a GPU, and a thread, for each rank
[[nodiscard]] inline way<toy::history> on_gpu_per_rank(
    std::string name, cuda_model::options machine) {
  auto const run = [=](plan const& planned, std::uint64_t seed) mutable {
    machine.devices = machine.hosts = planned.problem().ranks();
    cuda::device const backend{.devices = cuda::one_device_per_rank(machine.devices)};
    return on_gpu({}, machine, backend).run(planned, seed);
  };
  return {std::move(name), run};
}

/// Trains under one interleaving and checks bits, faults and what is left behind.
inline void check_training(
    plan const& planned,
    toy::history const& expected,
    cuda_model::options const& machine,
    cuda::device const& backend = {}) {
  INFO("interleaving " << machine.seed);
  checked_gpus const gpus(machine);
  bool const is_right = launched_training(planned, backend).train() == expected;
  CHECK(is_right);
}

}  // namespace zbpp::test
