// SPDX-License-Identifier: Apache-2.0
//
// How tests train the models of torch_models.hpp: in a plain loop and in pipelines.
#pragma once

#include <zbpp/optim/adamw.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/training.hpp>
#include <zbpp/torch/torch.hpp>

#include <support/torch_checks.hpp>
#include <support/torch_models.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test {

/// The losses of all steps and the weights after them.
struct torch_outcome {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
};

/// @return what differs, or nothing
[[nodiscard]] inline std::string difference(torch_outcome const& a, torch_outcome const& b) {
  if (a.losses != b.losses) return "losses";
  return same_bits(a.weights, b.weights) ? "" : "weights";
}
[[nodiscard]] inline bool is_same(torch_outcome const& a, torch_outcome const& b) {
  return difference(a, b).empty();
}

/// Makes the problem of stages that can recompute.
[[nodiscard]] inline problem torch_problem(placement const& placement, int microbatches) {
  return {placement, microbatches, stage_costs{.forward = 10, .recompute = 10}, 1};
}

[[nodiscard]] inline std::vector<at::Tensor> parameters_of(torch_model const& model) {
  std::vector<at::Tensor> all;
  for (auto const& slice : model.slices)
    all.insert(all.end(), slice.parameters.begin(), slice.parameters.end());
  return all;
}

[[nodiscard]] inline std::vector<at::Tensor> weights_of(torch_model const& model) {
  auto all = parameters_of(model);
  for (auto& each : all) each = each.detach();
  return all;
}

/// @return the model with its slices joined to `count`, of which each has as many
[[nodiscard]] inline torch_model in_stages(torch_model const& model, int count) {
  torch_model joined{model.name, {}, model.batch};
  auto const each = model.slices.size() / static_cast<std::size_t>(count);
  for (std::size_t s = 0; s < model.slices.size(); ++s) {
    if (s % each == 0) joined.slices.emplace_back();
    auto const& from = model.slices[s];
    auto& to = joined.slices.back();
    to.parameters.insert(to.parameters.end(), from.parameters.begin(), from.parameters.end());
    append(to, from.forward);
  }
  return joined;
}

[[nodiscard]] inline std::int64_t number_of(
    std::int64_t step, std::int64_t mb, std::int64_t count) {
  return step * count + mb;
}

[[nodiscard]] inline zbpp::torch::stage_ends ends_of(torch_model const& model) {
  return {
      .batch = [make = model.batch](microbatch mb) -> zbpp::torch::tensors {
        return {make(number_of(mb.step(), mb.index(), mb.count()))};
      },
      .loss = [](zbpp::torch::tensors const& outputs, microbatch) { return outputs.front(); }};
}

/// Some sums of LibTorch depend on how many threads a kernel uses, so all use one.
[[nodiscard]] inline zbpp::threads one_thread_each() {
  auto const limit = zbpp::torch::intra_op_threads(1);
  limit({});
  return {.on_thread_start = limit};
}

/// Takes the optimizer steps of a plain loop, in the way that ranks agree on.
class plain_steps {
 public:
  plain_steps(
      std::vector<at::Tensor> const& parameters,
      training_options options,
      std::vector<at::Tensor> const& tied = {},
      optim::adamw_settings settings = {})
      : optimizer_(zbpp::torch::layers_of(parameters, tied), settings),
        options_(std::move(options)) {
    state_.loss_scale = options_.scaling.initial;
  }

  [[nodiscard]] optim::adamw& optimizer() { return optimizer_; }
  void resume(training_state const& state) { state_ = state; }

  [[nodiscard]] training_state const& state() const { return state_; }

  /// Ends a step, with the gradients of its microbatches in the `grad` of all parameters.
  void step() {
    std::vector<gradient_state> states(static_cast<std::size_t>(optimizer_.layers()));
    zbpp::arena memory;
    zbpp::pass_context const ctx(memory);
    optimizer_.measure(states, ctx);
    std::vector<gradient_state> counted;  // tied ones once
    bool has_tied = false;
    for (int i = 0; i < optimizer_.layers(); ++i)
      if (!optimizer_.is_tied(i) || !std::exchange(has_tied, true))
        counted.push_back(states[static_cast<std::size_t>(i)]);
    auto const verdict = judge(counted, options_.clip, state_.loss_scale);
    ++state_.steps;
    state_.amended = state_.amended << 1U | (verdict.is_plain() ? 0U : 1U);
    if (!verdict.is_finite) {
      optimizer_.skip(ctx);
      state_.loss_scale = std::max(options_.scaling.smallest, state_.loss_scale / 2);
      state_.finite_steps = 0;
      return;
    }
    optimizer_.step(
        {.updates = state_.updates,
         .learning_rate = options_.learning_rate(state_.updates),
         .coefficient = verdict.coefficient,
         .gradient_scale = state_.loss_scale},
        ctx);
    ++state_.updates;
    if (++state_.finite_steps != options_.scaling.growth_interval) return;
    state_.loss_scale = std::min(options_.scaling.largest, state_.loss_scale * 2);
    state_.finite_steps = 0;
  }

 private:
  optim::adamw optimizer_;
  training_options options_;
  training_state state_;
};

/// Runs the microbatches of one step in a plain loop. @return their losses
[[nodiscard]] inline std::vector<double> plain_microbatches(
    torch_model const& model, std::int64_t step, int microbatches, double scale = 1) {
  std::vector<double> losses;
  for (int mb = 0; mb < microbatches; ++mb) {
    auto x = model.batch(number_of(step, mb, microbatches));
    for (auto const& slice : model.slices) x = slice.forward(x);
    x.backward(at::full_like(x, scale));
    losses.push_back(x.item<double>());
  }
  return losses;
}

/// Trains in a plain loop. @param step  called when the gradients of a step are complete
template <class Step>
[[nodiscard]] torch_outcome train_plainly(
    torch_model const& model, int steps, int microbatches, Step step) {
  torch_outcome made;
  for (int i = 0; i < steps; ++i) {
    auto const losses = plain_microbatches(model, i, microbatches);
    made.losses.insert(made.losses.end(), losses.begin(), losses.end());
    step();
  }
  made.weights = weights_of(model);
  return made;
}

/// Runs steps of a pipeline that trains a model.
template <class Pipeline>
[[nodiscard]] torch_outcome train_in(Pipeline& pipe, torch_model const& model, int steps) {
  torch_outcome made;
  pipe.run(steps, [&](step_result const& result) {
    made.losses.insert(made.losses.end(), result.losses.begin(), result.losses.end());
  });
  made.weights = weights_of(model);
  return made;
}

/// Makes the stages of a rank, or of all, stepped by zbpp's AdamW.
[[nodiscard]] inline std::vector<zbpp::torch::module_stage<optim::adamw>> adamw_stages(
    torch_model const& model,
    std::span<int const> indices,
    std::vector<at::Tensor> const& tied = {}) {
  std::vector<zbpp::torch::module_stage<optim::adamw>> stages;
  for (int s : indices) {
    auto const& slice = model.slices[static_cast<std::size_t>(s)];
    stages.emplace_back(
        slice.forward,
        ends_of(model),
        optim::adamw(zbpp::torch::layers_of(slice.parameters, tied)));
  }
  return stages;
}

/// Makes the part of a stage in checkpoints. Its parameters have their numbers in the whole model
/// as names.
template <class Optimizer>
[[nodiscard]] zbpp::torch::model_part numbered_part(
    torch_model const& model, int stage, Optimizer& optimizer) {
  std::size_t number = 0;
  for (int s = 0; s < stage; ++s)
    number += model.slices[static_cast<std::size_t>(s)].parameters.size();
  std::vector<zbpp::torch::named_tensor> named;
  for (auto const& p : model.slices[static_cast<std::size_t>(stage)].parameters)
    named.push_back({"layers." + std::to_string(number++), p});
  return {named, optimizer};
}

}  // namespace zbpp::test
