// SPDX-License-Identifier: Apache-2.0
//
// What the examples of LibTorch are compared with: a plain loop over the same slices of a model.
#pragma once

#include <cstdio>
#include <torch/torch.h>
#include <vector>

/// Trains slices that have `layers`, a `torch::nn::Sequential`, and an `optimizer`.
/// @param batch  gives the input of a microbatch, one tensor or several, from its number
/// @param loss   gives the loss of a microbatch from the outputs of the last slice and its number
/// @return the loss of each microbatch
template <class Slice, class Batch, class Loss>
std::vector<double> plain_loop(
    std::vector<Slice>& model, int steps, int microbatches, Batch batch, Loss loss) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    for (int mb = 0; mb < microbatches; ++mb) {
      int const number = step * microbatches + mb;
      auto x = batch(number);
      for (auto& each : model) x = each.layers->template forward<decltype(x)>(x);
      auto const of_microbatch = loss(x, number);
      of_microbatch.backward();
      losses.push_back(of_microbatch.template item<double>());
    }
    for (auto& each : model) {
      each.optimizer->step();
      each.optimizer->zero_grad();
    }
  }
  return losses;
}

/// Gives the bits of all parameters and buffers.
template <class Slice>
torch::Tensor bits_of(std::vector<Slice> const& model) {
  std::vector<torch::Tensor> all;
  for (auto const& each : model)
    for (auto const& list : {each.layers->parameters(), each.layers->buffers()})
      for (auto const& one : list) all.push_back(one.flatten().to(torch::kFloat));
  return torch::cat(all).view(torch::kInt);
}

/// Compares two trainings to the bit, and says how they went.
/// @return whether they are the same and the loss fell
template <class Slice>
bool is_same_training(
    std::vector<double> const& plain_losses,
    std::vector<Slice> const& plain,
    std::vector<double> const& losses,
    std::vector<Slice> const& staged) {
  bool const is_same = losses == plain_losses && bits_of(plain).equal(bits_of(staged));
  std::printf("loss of a microbatch: %.4f at first, %.4f at last\n", losses.front(), losses.back());
  std::puts(is_same ? "losses and weights are the same, to the bit" : "the pipeline differs");
  return is_same && losses.back() < losses.front();
}
