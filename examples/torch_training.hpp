// SPDX-License-Identifier: Apache-2.0
//
// What the examples of LibTorch share: they train slices of a model once in a plain loop and once
// in a pipeline, and compare both to the bit.
#pragma once

#include <zbpp/torch/torch.hpp>
#include <zbpp/zbpp.hpp>

#include <cstdint>
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

/// Gives the number of a microbatch among those of all steps.
inline std::int64_t number_of(zbpp::microbatch mb) { return mb.step() * mb.count() + mb.index(); }

/// Trains four stages on two ranks in a V, which are threads.
/// @return the loss of each microbatch
template <class Stages>
std::vector<double> train_in_v(Stages& stages, int steps, int microbatches) {
  zbpp::stage_costs const costs{.forward = 10, .backward_input = 10, .backward_weight = 8};
  zbpp::problem const problem(zbpp::placement::v_shape(2), microbatches, costs);
  auto const plan = zbpp::make_plan(zbpp::zb_v{}, problem);
  zbpp::threads const ranks{.on_thread_start = zbpp::torch::intra_op_threads(1)};
  zbpp::pipeline pipe{plan, ranks, stages};
  std::vector<double> losses;
  pipe.run(steps, [&](zbpp::step_result const& result) {
    losses.insert(losses.end(), result.losses.begin(), result.losses.end());
  });
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
