// SPDX-License-Identifier: Apache-2.0
//
// A ResNet for images of CIFAR's shape, cut into four stages on two ranks in a V. Two cuts lie
// within a residual block, so the skip crosses these edges, too. It learns once in a plain loop and
// once in a pipeline on two threads, and compares losses, weights and running means to the bit.
#include "torch_training.hpp"
#include <zbpp/torch/torch.hpp>
#include <zbpp/zbpp.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <torch/torch.h>
#include <utility>
#include <vector>

namespace {

namespace nn = torch::nn;
using zbpp::torch::tensors;

constexpr int microbatches = 4, steps = 6;
constexpr std::int64_t rows = 8, classes = 10;

// A convolution with its norm. Where a residual block begins, it gives its input on as the skip;
// where one ends, it adds the skip.
struct convolution : nn::Module {
  enum class place { before_blocks, begins_block, ends_block };

  convolution(std::int64_t from, std::int64_t to, place where, std::int64_t stride = 1)
      : where_(where),
        conv_(register_module(
            "conv",
            nn::Conv2d(nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false)))),
        norm_(register_module("norm", nn::BatchNorm2d(to))) {}

  tensors forward(tensors in) {
    auto x = norm_(conv_(in[0]));
    if (where_ == place::ends_block) x = x + as_large_as(x, in[1]);
    if (where_ == place::begins_block) return {x.relu(), in[0]};
    return {x.relu()};
  }

 private:
  // Where a block halves the image and doubles the channels, its skip does so without weights.
  static torch::Tensor as_large_as(torch::Tensor const& x, torch::Tensor skip) {
    if (skip.sizes() == x.sizes()) return skip;
    skip = torch::avg_pool2d(skip, 2);
    return torch::cat({skip, torch::zeros_like(skip)}, 1);
  }

  place where_;
  nn::Conv2d conv_;
  nn::BatchNorm2d norm_;
};

struct classifier : nn::Module {
  tensors forward(tensors in) { return {linear(in[0].mean({2, 3}))}; }
  nn::Linear linear = register_module("linear", nn::Linear(32, classes));
};

struct slice {
  nn::Sequential layers;
  std::shared_ptr<torch::optim::SGD> optimizer;
};

// Makes the slices of the model, with the same weights each time. A cut may lie within a block.
std::vector<slice> make_model() {
  using enum convolution::place;
  torch::manual_seed(7);
  std::vector<slice> model(1);
  auto add = [&, count = 0](auto layer) mutable {
    if (count == 4 || count == 7 || count == 10) model.emplace_back();
    model.back().layers->push_back(layer);
    ++count;
  };
  add(std::make_shared<convolution>(3, 8, before_blocks));
  for (auto const& [from, to] : {std::pair(8, 8), {8, 8}, {8, 16}, {16, 16}, {16, 32}, {32, 32}}) {
    add(std::make_shared<convolution>(from, to, begins_block, to / from));
    add(std::make_shared<convolution>(to, to, ends_block));
  }
  add(std::make_shared<classifier>());
  for (auto& [layers, optimizer] : model)
    optimizer = std::make_shared<torch::optim::SGD>(
        layers->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  return model;
}

// Images with their classes: noise, brighter in a column that tells the class.
std::pair<tensors, torch::Tensor> images(std::int64_t number) {
  auto random = zbpp::torch::generator_for({.seed = 1, .microbatch = number});
  auto const labels = torch::randint(classes, {rows}, random, torch::kLong);
  auto const noise = torch::randn({rows, 3, 32, 32}, random);
  return {{noise + 2 * torch::one_hot(labels, 32).view({rows, 1, 1, 32})}, labels};
}

torch::Tensor loss_of(tensors const& scores, std::int64_t number) {
  return torch::cross_entropy_loss(scores[0], images(number).second) / microbatches;
}

std::vector<double> pipeline(std::vector<slice>& model) {
  // [stages
  zbpp::torch::stage_ends const ends{
      .batch = [&](zbpp::microbatch mb) { return images(number_of(mb)).first; },
      .loss = [&](tensors const& scores,
                  zbpp::microbatch mb) { return loss_of(scores, number_of(mb)); }};
  std::vector<zbpp::torch::module_stage<std::shared_ptr<torch::optim::SGD>>> stages;
  for (auto& [layers, optimizer] : model)
    stages.emplace_back(
        zbpp::torch::layer(
            [layers = layers](tensors const& in) mutable { return layers->forward<tensors>(in); },
            layers),
        ends,
        optimizer);
  // stages]
  return train_in_v(stages, steps, microbatches);
}

}  // namespace

int main() {
  zbpp::torch::keep_freed_memory();  // freed tensors take no page faults again
  at::set_num_threads(1);            // as many as the ranks use: some sums depend on it
  auto plain = make_model();
  auto staged = make_model();
  auto const expected = plain_loop(
      plain, steps, microbatches, [](int number) { return images(number).first; }, loss_of);
  return is_same_training(expected, plain, pipeline(staged), staged) ? 0 : 1;
}
