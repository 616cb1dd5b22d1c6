// SPDX-License-Identifier: Apache-2.0
//
// Random models that are a torch::nn::Sequential, and how they train in a plain loop.
#pragma once

#include <zbpp/torch/torch.hpp>

#include <support/torch_training.hpp>

#include <cstdint>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <utility>
#include <vector>

namespace zbpp::test {

constexpr int sequential_steps = 4;

/// A model, and the batches that it is trained with.
struct sequential_model {
  ::torch::nn::Sequential layers;
  std::int64_t width = 0;  // of its inputs
  std::int64_t seed = 0;

  [[nodiscard]] at::Tensor batch(std::int64_t number) const {
    auto const place =
        zbpp::torch::random_place{.seed = static_cast<std::uint64_t>(seed), .microbatch = number};
    return at::randn({5, width}, zbpp::torch::generator_for(place), at::kFloat);
  }
  [[nodiscard]] static at::Tensor loss(at::Tensor const& outputs) {
    return (outputs - 1).square().mean();
  }
  [[nodiscard]] zbpp::torch::stage_ends ends() const {
    auto data = *this;
    data.layers = nullptr;  // who has the ends does not keep the layers
    return {
        [data](microbatch mb) -> zbpp::torch::tensors {
          return {data.batch(number_of(mb.step(), mb.index(), mb.count()))};
        },
        [](zbpp::torch::tensors const& outputs, microbatch) { return loss(outputs.front()); }};
  }
  /// @return parameters and buffers
  [[nodiscard]] std::vector<at::Tensor> state() const {
    auto all = layers->parameters();
    for (auto const& each : layers->buffers()) all.push_back(each);
    for (auto& each : all) each = each.detach();
    return all;
  }
};

/// Makes a model of some layers, the same one each time; some have no parameters, some have
/// buffers. The first and the last are linear.
[[nodiscard]] inline sequential_model make_sequential(std::uint64_t seed, int count) {
  namespace nn = ::torch::nn;
  seeded_random random(seed, 1);
  at::manual_seed(seed);
  auto width = random.integer(3, 9);
  sequential_model model{nn::Sequential(), width, static_cast<std::int64_t>(seed)};
  auto const add_linear = [&] {
    auto const next = random.integer(3, 9);
    model.layers->push_back(nn::Linear(width, next));
    width = next;
  };
  add_linear();
  for (int i = 2; i < count; ++i) switch (random.integer(0, 4)) {
      case 0: model.layers->push_back(nn::GELU()); break;
      case 1: model.layers->push_back(nn::LayerNorm(nn::LayerNormOptions({width}))); break;
      case 2: model.layers->push_back(nn::BatchNorm1d(width)); break;
      default: add_linear();
    }
  add_linear();
  return model;
}

/// Runs the steps from `first` to the one in front of `end` without a pipeline.
/// @return their losses
template <class Optimizer>
[[nodiscard]] std::vector<double> run_plain(
    sequential_model const& model, Optimizer& optimizer, int microbatches, int first, int end) {
  auto layers = model.layers;  // its forward is not const
  std::vector<double> losses;
  for (int step = first; step < end; ++step) {
    for (int mb = 0; mb < microbatches; ++mb) {
      at::Tensor const loss =
          model.loss(layers->forward(model.batch(number_of(step, mb, microbatches))));
      loss.backward();
      losses.push_back(loss.item<double>());
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return losses;
}

/// Trains a model without a pipeline.
template <class Make>
[[nodiscard]] torch_outcome plain_sequential(
    sequential_model const& model, int microbatches, Make const& make_optimizer) {
  auto const optimizer = make_optimizer(model.layers->parameters());
  auto losses = run_plain(model, *optimizer, microbatches, 0, sequential_steps);
  return {std::move(losses), model.state()};
}

}  // namespace zbpp::test
