// SPDX-License-Identifier: Apache-2.0
//
// A GPT of LibTorch modules becomes a pipeline on two threads in one call, which measures its
// layers and chooses the rest. It learns to write a text, once in a plain loop and once in the
// pipeline, and compares losses and weights to the bit. usage: 15_torch_gpt FILE
#include "torch_training.hpp"
#include <zbpp/torch/auto_pipeline.hpp>
#include <zbpp/torch/torch.hpp>
#include <zbpp/zbpp.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <torch/torch.h>
#include <vector>

namespace {

namespace nn = torch::nn;
using zbpp::torch::tensors;

constexpr std::int64_t words = 256, width = 48, heads = 4, context = 32, rows = 4;  // words: bytes
constexpr int blocks = 4, microbatches = 4, steps = 12;

struct embedding : nn::Module {
  torch::Tensor forward(torch::Tensor tokens) { return table(tokens) + positions; }
  nn::Embedding table = register_module("table", nn::Embedding(words, width));
  torch::Tensor positions = register_parameter("positions", torch::randn({context, width}) * 0.02);
};

struct block : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    auto const split = [&](torch::Tensor part) {
      return part.view({x.size(0), x.size(1), heads, width / heads}).transpose(1, 2);
    };
    auto const parts = qkv(before(x)).chunk(3, -1);
    auto const scores = split(parts[0]).matmul(split(parts[1]).transpose(-2, -1)) /
                        std::sqrt(static_cast<double>(width / heads));
    auto const later = torch::ones({x.size(1), x.size(1)}, torch::kBool).triu(1);
    auto const seen = scores.masked_fill(later, -1e9).softmax(-1);
    x = x + out(seen.matmul(split(parts[2])).transpose(1, 2).reshape(x.sizes()));
    return x + down(torch::gelu(up(behind(x))));
  }
  nn::LayerNorm before = register_module("before", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::LayerNorm behind = register_module("behind", nn::LayerNorm(nn::LayerNormOptions({width})));
  nn::Linear qkv = register_module("qkv", nn::Linear(width, 3 * width));
  nn::Linear out = register_module("out", nn::Linear(width, width));
  nn::Linear up = register_module("up", nn::Linear(width, 4 * width));
  nn::Linear down = register_module("down", nn::Linear(4 * width, width));
};

struct slice {
  nn::Sequential layers;
  std::shared_ptr<torch::optim::AdamW> optimizer;
};

// Makes the model, with the same weights each time.
nn::Sequential make_model() {
  torch::manual_seed(7);
  nn::Sequential model(std::make_shared<embedding>());
  for (int i = 0; i < blocks; ++i) model->push_back(std::make_shared<block>());
  model->push_back(nn::Linear(width, words));
  return model;
}

// The bytes of a text; microbatches read it in turn, and are to guess what comes one byte later.
struct text {
  torch::Tensor bytes;

  [[nodiscard]] torch::Tensor batch(std::int64_t number, std::int64_t later = 0) const {
    auto const places = torch::arange(rows * context) + number * rows * context + later;
    return bytes.take(places % bytes.numel()).view({rows, context});
  }
  [[nodiscard]] torch::Tensor loss(torch::Tensor const& scores, std::int64_t number) const {
    return torch::cross_entropy_loss(scores.flatten(0, 1), batch(number, 1).flatten()) /
           microbatches;
  }
};

std::vector<double> pipeline(nn::Sequential const& model, text const& from) {
  // [one_call
  auto const batch = [&](zbpp::microbatch mb) { return tensors{from.batch(number_of(mb))}; };
  auto const loss = [&](tensors const& outputs, zbpp::microbatch mb) {
    return from.loss(outputs.front(), number_of(mb));
  };
  auto const adamw = [](tensors const& parameters) {
    return std::make_shared<torch::optim::AdamW>(parameters, 1e-3);
  };
  auto pipe = zbpp::torch::auto_pipeline(
      model, {batch, loss}, adamw, {.ranks = 2, .microbatches = microbatches});
  // one_call]
  std::puts(zbpp::to_text(pipe.chosen()).c_str());
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    auto const& of_step = pipe.step().losses;
    losses.insert(losses.end(), of_step.begin(), of_step.end());
  }
  return losses;
}

}  // namespace

int main(int count, char** arguments) {
  zbpp::torch::keep_freed_memory();  // for the plain loop, too; auto_pipeline does it by itself
  at::set_num_threads(1);            // as many as the ranks use: some sums depend on it
  std::ifstream file(count == 2 ? arguments[1] : "");
  std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.empty()) {
    std::fputs("15_torch_gpt: cannot read a text; name one: 15_torch_gpt README.md\n", stderr);
    return 2;
  }
  text const from{torch::tensor(bytes, torch::kLong)};
  auto const model = make_model();
  auto const adamw = std::make_shared<torch::optim::AdamW>(model->parameters(), 1e-3);
  std::vector<slice> plain{{model, adamw}};
  std::vector<slice> const staged{{make_model(), nullptr}};
  auto const expected = plain_loop(
      plain,
      steps,
      microbatches,
      [&](int number) { return from.batch(number); },
      [&](torch::Tensor const& scores, int number) { return from.loss(scores, number); });
  return is_same_training(expected, plain, pipeline(staged.front().layers, from), staged) ? 0 : 1;
}
