// SPDX-License-Identifier: Apache-2.0
//
// A GPT of LibTorch modules, in four stages on two ranks in a V. It learns to write a text, once in
// a plain loop and once in a pipeline on two threads, and compares losses and weights to the bit.
// usage: 15_torch_gpt FILE
#include <zbpp/torch/torch.hpp>
#include <zbpp/zbpp.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <torch/torch.h>
#include <vector>

namespace {

constexpr std::int64_t words = 256;  // bytes
constexpr std::int64_t width = 48;
constexpr std::int64_t heads = 4;
constexpr std::int64_t context = 32;
constexpr std::int64_t rows = 4;
constexpr int blocks = 4;
constexpr int microbatches = 4;
constexpr int steps = 12;

struct embedding_impl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor tokens) {
    return table(tokens) + positions.slice(0, 0, tokens.size(1));
  }
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(words, width));
  torch::Tensor positions = register_parameter("positions", torch::randn({context, width}) * 0.02);
};

struct block_impl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    auto const split = [&](torch::Tensor part) {
      return part.view({x.size(0), x.size(1), heads, width / heads}).transpose(1, 2);
    };
    auto const parts = qkv(before(x)).chunk(3, -1);
    auto const scores = split(parts[0]).matmul(split(parts[1]).transpose(-2, -1)) /
                        std::sqrt(static_cast<double>(width / heads));
    auto const later = torch::ones({x.size(1), x.size(1)}, torch::kBool).triu(1);
    auto const mixed =
        scores.masked_fill(later, -1e9).softmax(-1).matmul(split(parts[2])).transpose(1, 2);
    x = x + out(mixed.reshape(x.sizes()));
    return x + down(torch::gelu(up(behind(x))));
  }
  template <class Layer>
  Layer with(char const* name, Layer layer) {
    return register_module(name, layer);
  }
  torch::nn::LayerNorm before =
      with("before", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  torch::nn::LayerNorm behind =
      with("behind", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  torch::nn::Linear qkv = with("qkv", torch::nn::Linear(width, 3 * width));
  torch::nn::Linear out = with("out", torch::nn::Linear(width, width));
  torch::nn::Linear up = with("up", torch::nn::Linear(width, 4 * width));
  torch::nn::Linear down = with("down", torch::nn::Linear(4 * width, width));
};

// The slices of a model with the same weights each time, and their optimizers.
struct model {
  model() {
    torch::manual_seed(7);
    for (int s = 0; s < blocks; ++s) {
      torch::nn::Sequential slice;
      if (s == 0) slice->push_back(std::make_shared<embedding_impl>());
      slice->push_back(std::make_shared<block_impl>());
      if (s == blocks - 1) slice->push_back(torch::nn::Linear(width, words));
      slices.push_back(slice);
      optimizers.push_back(std::make_shared<torch::optim::AdamW>(slice->parameters(), 1e-3));
    }
  }
  std::vector<torch::nn::Sequential> slices;
  std::vector<std::shared_ptr<torch::optim::AdamW>> optimizers;
};

// Gives the bytes of a microbatch, or those that follow each of them.
struct text {
  std::vector<std::int64_t> bytes;

  [[nodiscard]] torch::Tensor batch(std::int64_t number, std::int64_t shift) const {
    auto const made = torch::empty({rows, context}, torch::kLong);
    auto const size = static_cast<std::int64_t>(bytes.size());
    for (std::int64_t i = 0; i < rows * context; ++i)
      made.data_ptr<std::int64_t>()[i] =
          bytes[static_cast<std::size_t>((number * rows * context + i + shift) % size)];
    return made;
  }
  [[nodiscard]] torch::Tensor loss(torch::Tensor const& scores, std::int64_t number) const {
    return torch::nn::functional::cross_entropy(scores.flatten(0, 1), batch(number, 1).flatten()) /
           microbatches;
  }
};

std::vector<double> plain_loop(model& all, text const& from) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    for (int mb = 0; mb < microbatches; ++mb) {
      auto const number = step * microbatches + mb;
      auto x = from.batch(number, 0);
      for (auto& slice : all.slices) x = slice->forward(x);
      auto const loss = from.loss(x, number);
      loss.backward();
      losses.push_back(loss.item<double>());
    }
    for (auto& each : all.optimizers) each->step(), each->zero_grad();
  }
  return losses;
}

std::vector<double> pipeline(model& all, text const& from) {
  auto const number = [](zbpp::microbatch mb) { return mb.step() * mb.count() + mb.index(); };
  // [stages
  zbpp::torch::stage_ends const ends{
      .batch = [&](zbpp::microbatch mb) -> zbpp::torch::tensors {
        return {from.batch(number(mb), 0)};
      },
      .loss = [&](zbpp::torch::tensors const& outputs,
                  zbpp::microbatch mb) { return from.loss(outputs.front(), number(mb)); }};
  std::vector<zbpp::torch::module_stage<std::function<void()>>> stages;
  for (std::size_t s = 0; s < all.slices.size(); ++s)
    stages.emplace_back(all.slices[s], ends, [optimizer = all.optimizers[s]] {
      optimizer->step();
      optimizer->zero_grad();
    });
  // stages]

  zbpp::stage_costs const costs{.forward = 10, .backward_input = 10, .backward_weight = 8};
  zbpp::problem const problem(zbpp::placement::v_shape(2), microbatches, costs);
  auto const plan = zbpp::make_plan(zbpp::fixed_zb_v{}, problem);
  zbpp::threads const ranks{.on_thread_start = zbpp::torch::intra_op_threads(1)};
  zbpp::pipeline pipe{plan, ranks, stages};
  std::vector<double> losses;
  pipe.run(steps, [&](zbpp::step_result const& result) {
    losses.insert(losses.end(), result.losses.begin(), result.losses.end());
  });
  return losses;
}

bool same_weights(model& a, model& b) {
  for (std::size_t s = 0; s < a.slices.size(); ++s) {
    auto const ours = a.slices[s]->parameters();
    auto const theirs = b.slices[s]->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i)
      if (std::memcmp(ours[i].data_ptr(), theirs[i].data_ptr(), ours[i].nbytes()) != 0)
        return false;
  }
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  at::set_num_threads(1);  // as many as the ranks use: some sums depend on it
  std::ifstream file(count == 2 ? arguments[1] : "");
  std::string const bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.empty()) {
    std::fputs("15_torch_gpt: cannot read a text; name one: 15_torch_gpt README.md\n", stderr);
    return 2;
  }
  text from;
  for (char each : bytes) from.bytes.push_back(static_cast<unsigned char>(each));

  model plain;
  model staged;
  auto const expected = plain_loop(plain, from);
  auto const losses = pipeline(staged, from);
  for (int step = 0; step < steps; step += 3)
    std::printf(
        "step %2d: loss of microbatch 0 is %.6f, in the pipeline %.6f\n",
        step,
        expected[static_cast<std::size_t>(step * microbatches)] * microbatches,
        losses[static_cast<std::size_t>(step * microbatches)] * microbatches);
  bool const same = losses == expected && same_weights(plain, staged);
  bool const learns = losses.back() < losses.front();
  std::puts(same ? "losses and weights are the same, to the bit" : "the pipeline differs");
  return same && learns ? 0 : 1;
}
