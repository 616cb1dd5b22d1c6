// SPDX-License-Identifier: Apache-2.0
//
// Slices whose modules have modes and statistics: linear, batch norm and dropout.
#pragma once

#include <zbpp/torch/layer.hpp>

#include <support/torch_training.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <vector>

namespace zbpp::test {

using slice_list = std::vector<::torch::nn::Sequential>;

constexpr std::int64_t norm_width = 4;

/// Is a batch norm and a dropout, so that a slice has modules within modules.
struct normed_impl : ::torch::nn::Module {
  normed_impl(::torch::nn::BatchNorm1dOptions const& options, double p)
      : norm(register_module("norm", ::torch::nn::BatchNorm1d(options))),
        dropout(register_module("dropout", ::torch::nn::Dropout(p))) {}
  at::Tensor forward(at::Tensor const& x) { return dropout(norm(x)); }

  ::torch::nn::BatchNorm1d norm;
  ::torch::nn::Dropout dropout;
};

/// Makes slices with the same weights each time. Batch norms average by momentum and over all
/// batches in turns; dropouts that are asked for keep an element with probability `1 - p`.
[[nodiscard]] inline slice_list normed_slices(int count, double p = 0) {
  namespace nn = ::torch::nn;
  at::manual_seed(run_seed());
  slice_list made;
  for (int s = 0; s < count; ++s) {
    nn::Sequential slice(nn::Linear(norm_width, norm_width));
    nn::BatchNorm1dOptions options(norm_width);
    if (s % 2 == 1) options.momentum(c10::nullopt);
    slice->push_back(std::make_shared<normed_impl>(options, p));
    made.push_back(slice);
  }
  return made;
}

[[nodiscard]] inline at::Tensor normed_batch(std::int64_t number) {
  return random_tensor({6, norm_width}, 300 + number);
}
[[nodiscard]] inline at::Tensor normed_loss(at::Tensor const& out) {
  return out.pow(2).mean() + out.sigmoid().sum();
}
[[nodiscard]] inline zbpp::torch::stage_ends normed_ends() {
  return {
      .batch = [](microbatch mb) -> zbpp::torch::tensors {
        return {normed_batch(number_of(mb.step(), mb.index(), mb.count()))};
      },
      .loss = [](zbpp::torch::tensors const& out, microbatch) { return normed_loss(out.front()); }};
}

/// @return the running statistics of slices, copied
[[nodiscard]] inline std::vector<at::Tensor> statistics_of(slice_list const& slices) {
  std::vector<at::Tensor> all;
  for (auto const& slice : slices)
    for (auto const& each : slice->buffers()) all.push_back(each.clone());
  return all;
}

/// @return the gradients of slices
[[nodiscard]] inline std::vector<at::Tensor> gradients_of(slice_list const& slices) {
  std::vector<at::Tensor> all;
  for (auto const& slice : slices)
    for (auto const& each : slice->parameters()) all.push_back(each.grad());
  return all;
}

/// @return of each module, parents first, whether it is in training mode
[[nodiscard]] inline std::vector<bool> modes_of(slice_list const& slices) {
  std::vector<bool> all;
  for (auto const& slice : slices)
    for (auto const& each : slice->modules()) all.push_back(each->is_training());
  return all;
}

/// Runs the microbatches of a step in a plain loop, backwards, too, where autograd is on.
/// @return their losses
[[nodiscard]] inline std::vector<double> plain_losses(
    slice_list const& slices, std::int64_t step, int microbatches) {
  std::vector<double> losses;
  for (int mb = 0; mb < microbatches; ++mb) {
    auto x = normed_batch(number_of(step, mb, microbatches));
    for (auto slice : slices) x = slice->forward(x);
    auto const loss = normed_loss(x);
    if (c10::GradMode::is_enabled()) loss.backward();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

/// Does so in evaluation mode.
[[nodiscard]] inline std::vector<double> plain_evaluation(
    slice_list const& slices, std::int64_t step, int microbatches) {
  c10::AutoGradMode const off(false);
  for (auto slice : slices) slice->eval();
  return plain_losses(slices, step, microbatches);
}

}  // namespace zbpp::test
