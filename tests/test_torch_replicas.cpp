// SPDX-License-Identifier: Apache-2.0
//
// Replicas of a model of LibTorch have the bits of plain loops whose gradients are added up.
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/torch_training.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <torch/optim/adamw.h>
#include <utility>
#include <vector>

namespace test_torch_replicas {

using namespace zbpp::test;
using zbpp::step_kind;
using zbpp::torch::module_stage;
using zbpp::torch::optimizer_steps;
using zbpp::torch::rate_from;
using zbpp::torch::tensors;

namespace {

constexpr int steps = 6;
constexpr int microbatches = 4;

// Each replica has other data; parameter 1 gets no gradient in step 2 of replica 1, and none at all
// in step 4.
torch_model make_model(int replica) {
  auto model = mlp_model(run_seed(), 2, 2, 6, 3);
  model.batch = [make = model.batch, replica](std::int64_t number) {
    return make(number + 1000 * replica);
  };
  return model;
}

void forget_gradient(torch_model const& model, int step, int replica) {
  if ((step == 2 && replica == 1) || step == 4)
    model.slices.front().parameters[1].mutable_grad().reset();
}

std::shared_ptr<torch::optim::AdamW> adamw_of(tensors const& parameters) {
  return std::make_shared<torch::optim::AdamW>(
      parameters, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
}

// @return the weights of a replica; all have the same
tensors plain(int replicas) {
  at::set_num_threads(1);
  std::vector<torch_model> models;
  for (int n = 0; n < replicas; ++n) models.push_back(make_model(n));
  auto const first = parameters_of(models.front());
  auto const optimizer = adamw_of(first);
  for (int step = 0; step < steps; ++step) {
    std::vector<tensors> gradients;
    for (int n = 0; n < replicas; ++n) {
      auto const& model = models[static_cast<std::size_t>(n)];
      static_cast<void>(plain_microbatches(model, step, microbatches));
      forget_gradient(model, step, n);
      auto& own = gradients.emplace_back();
      for (auto& p : parameters_of(model)) own.push_back(std::exchange(p.mutable_grad(), {}));
    }
    for (std::size_t i = 0; i < first.size(); ++i) {
      auto sum = gradients.front()[i];
      for (std::size_t n = 1; n < gradients.size(); ++n) {
        auto const& more = gradients[n][i];
        if (!sum.defined())
          sum = more;
        else if (more.defined())
          sum = sum + more;
      }
      first[i].mutable_grad() = sum;
    }
    optimizer->step();
    optimizer->zero_grad();
    c10::AutoGradMode const off(false);
    for (std::size_t n = 1; n < models.size(); ++n) {
      auto const others = parameters_of(models[n]);
      for (std::size_t i = 0; i < first.size(); ++i) others[i].copy_(first[i]);
    }
  }
  return weights_of(models.front());
}

std::vector<tensors> in_pipelines(int replicas, step_kind kind) {
  auto const planned = zbpp::make_plan(
      zbpp::zb_h2{},
      zbpp::with_replicas(
          zbpp::problem(zbpp::placement::linear(2), microbatches, zbpp::stage_costs{.forward = 10}),
          {.count = replicas}),
      {.step = kind});
  zbpp::in_process_grid whole({.pipeline = 2, .data = replicas});
  std::vector<tensors> all(static_cast<std::size_t>(replicas));
  whole.run([&](zbpp::grid_place const& at) {
    auto const model = make_model(at.data());
    std::vector<module_stage<optimizer_steps<torch::optim::AdamW>>> stages;
    for (auto const& slice : model.slices)
      stages.emplace_back(
          slice.forward,
          ends_of(model),
          optimizer_steps<torch::optim::AdamW>(adamw_of(slice.parameters), rate_from::optimizer));
    auto backend = one_thread_each();
    backend.place = at;
    int step = 0;
    zbpp::training_options options;
    options.on_gradients_ready = [&](int stage, zbpp::pass_context) {
      if (stage == 0) forget_gradient(model, step++, at.data());
    };
    zbpp::pipeline replica{planned, backend, stages, options};
    replica.run(steps);
    all[static_cast<std::size_t>(at.data())] = weights_of(model);
  });
  return all;
}

}  // namespace

TEST_CASE("replicas of a module have the bits of loops that are added up", "[torch][replicas]") {
  for (int const replicas : {2, 3}) {
    auto const expected = plain(replicas);
    for (auto const kind :
         {step_kind::unchecked, step_kind::synchronous, step_kind::post_validated}) {
      CAPTURE(replicas, static_cast<int>(kind));
      for (auto const& weights : in_pipelines(replicas, kind)) CHECK(same_bits(weights, expected));
    }
  }
}

}  // namespace test_torch_replicas
