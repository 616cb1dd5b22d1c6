// SPDX-License-Identifier: Apache-2.0
//
// Small models in slices: an MLP, a GPT and a CNN, whose weights depend on a seed alone.
#pragma once

#include <zbpp/torch/torch.hpp>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test {

/// A part of a model: what one stage computes.
struct torch_slice {
  std::vector<at::Tensor> parameters;
  std::function<at::Tensor(at::Tensor const&)> forward;
};

/// A model and the size of a microbatch; the last slice gives the loss.
struct torch_model {
  std::string name;
  std::vector<torch_slice> slices;
  std::function<at::Tensor(std::int64_t microbatch)> batch;
};

/// Makes parameters one after another.
class parameter_maker {
 public:
  parameter_maker(std::uint64_t seed, torch_slice& slice, std::int64_t stage)
      : place_{.seed = seed, .stage = stage}, slice_(slice) {}

  at::Tensor normal(at::IntArrayRef sizes, double deviation) {
    ++place_.operation;
    at::Tensor made =
        at::randn(sizes, zbpp::torch::generator_for(place_), at::kFloat).mul_(deviation);
    return slice_.parameters.emplace_back(made.set_requires_grad(true));
  }
  at::Tensor ones(std::int64_t size) {
    return slice_.parameters.emplace_back(at::ones({size}).set_requires_grad(true));
  }
  at::Tensor zeros(std::int64_t size) {
    return slice_.parameters.emplace_back(at::zeros({size}).set_requires_grad(true));
  }

 private:
  zbpp::torch::random_place place_;
  torch_slice& slice_;
};

using torch_layer = std::function<at::Tensor(at::Tensor const&)>;

inline torch_layer linear_gelu(parameter_maker& make, std::int64_t width) {
  at::Tensor w = make.normal({width, width}, 1.0 / std::sqrt(static_cast<double>(width)));
  at::Tensor b = make.zeros(width);
  return [=](at::Tensor const& x) { return at::gelu(at::linear(x, w, b)); };
}

inline torch_layer gpt_block(parameter_maker& make, std::int64_t width, std::int64_t heads) {
  double const scale = 1.0 / std::sqrt(static_cast<double>(width));
  at::Tensor g1 = make.ones(width), b1 = make.zeros(width);
  at::Tensor qkv = make.normal({3 * width, width}, scale), qkv_b = make.zeros(3 * width);
  at::Tensor out = make.normal({width, width}, scale), out_b = make.zeros(width);
  at::Tensor g2 = make.ones(width), b2 = make.zeros(width);
  at::Tensor up = make.normal({4 * width, width}, scale), up_b = make.zeros(4 * width);
  at::Tensor down = make.normal({width, 4 * width}, scale / 2), down_b = make.zeros(width);
  return [=](at::Tensor const& x) {
    auto const n = x.size(0);
    auto const t = x.size(1);
    at::Tensor h = at::layer_norm(x, {width}, g1, b1);
    auto parts = at::linear(h, qkv, qkv_b).chunk(3, -1);
    for (at::Tensor& part : parts) part = part.view({n, t, heads, width / heads}).transpose(1, 2);
    at::Tensor scores = parts[0].matmul(parts[1].transpose(-2, -1)) *
                        (1.0 / std::sqrt(static_cast<double>(width / heads)));
    at::Tensor const later = at::ones({t, t}, at::kBool).triu(1);
    at::Tensor a = scores.masked_fill(later, -1e9).softmax(-1).matmul(parts[2]);
    a = a.transpose(1, 2).reshape({n, t, width});
    at::Tensor y = x + at::linear(a, out, out_b);
    h = at::layer_norm(y, {width}, g2, b2);
    return y + at::linear(at::gelu(at::linear(h, up, up_b)), down, down_b);
  };
}

inline torch_layer residual_conv(parameter_maker& make, std::int64_t channels) {
  double const scale = 1.0 / std::sqrt(9.0 * static_cast<double>(channels));
  at::Tensor w = make.normal({channels, channels, 3, 3}, scale), b = make.zeros(channels);
  at::Tensor g = make.ones(channels), s = make.zeros(channels);
  return [=](at::Tensor const& x) {
    at::Tensor y = at::conv2d(x, w, b, 1, 1);
    return x + at::relu(at::group_norm(y, 4, g, s));
  };
}

/// Puts layers into a slice, in order.
inline void append(torch_slice& slice, torch_layer layer) {
  if (!slice.forward) {
    slice.forward = std::move(layer);
    return;
  }
  slice.forward = [first = std::move(slice.forward),
                   second = std::move(layer)](at::Tensor const& x) { return second(first(x)); };
}

/// What a batch of floats of these sizes is.
inline std::function<at::Tensor(std::int64_t)> random_batch(
    std::uint64_t seed, std::vector<std::int64_t> sizes) {
  return [=](std::int64_t microbatch) {
    return at::randn(
        sizes,
        zbpp::torch::generator_for({.seed = seed, .microbatch = microbatch, .stage = -1}),
        at::kFloat);
  };
}

inline torch_model mlp_model(
    std::uint64_t seed,
    std::int64_t slices,
    std::int64_t layers,
    std::int64_t width,
    std::int64_t rows) {
  torch_model model{"mlp", {}, random_batch(seed, {rows, width})};
  for (std::int64_t s = 0; s < slices; ++s) {
    torch_slice& slice = model.slices.emplace_back();
    parameter_maker make(seed, slice, s);
    for (std::int64_t l = 0; l < layers; ++l) append(slice, linear_gelu(make, width));
    if (s == slices - 1) append(slice, [](at::Tensor const& y) { return y.pow(2).mean(); });
  }
  return model;
}

/// Tokens in, so the first slice has inputs that need no gradient; positions are a parameter that
/// is added to them.
inline torch_model gpt_model(
    std::uint64_t seed,
    std::int64_t slices,
    std::int64_t blocks,
    std::int64_t width,
    std::int64_t rows,
    std::int64_t time) {
  std::int64_t const words = 32;
  torch_model model{"gpt", {}, [=](std::int64_t microbatch) {
                      return at::randint(
                          words,
                          {rows, time},
                          zbpp::torch::generator_for({.seed = seed, .microbatch = microbatch}),
                          at::kLong);
                    }};
  for (std::int64_t s = 0; s < slices; ++s) {
    torch_slice& slice = model.slices.emplace_back();
    parameter_maker make(seed, slice, s);
    if (s == 0) {
      at::Tensor table = make.normal({words, width}, 0.5);
      at::Tensor positions = make.normal({time, width}, 0.5);
      append(slice, [=](at::Tensor const& tokens) {
        return at::embedding(table, tokens) + positions;
      });
    }
    for (std::int64_t b = 0; b < blocks; ++b) append(slice, gpt_block(make, width, 2));
    if (s == slices - 1) {
      at::Tensor g = make.ones(width), b = make.zeros(width);
      at::Tensor head = make.normal({words, width}, 0.2);
      append(slice, [=](at::Tensor const& y) {
        at::Tensor const scores = at::linear(at::layer_norm(y, {width}, g, b), head);
        return -at::log_softmax(scores, -1).select(-1, 3).mean();
      });
    }
  }
  return model;
}

inline torch_model cnn_model(
    std::uint64_t seed,
    std::int64_t slices,
    std::int64_t layers,
    std::int64_t channels,
    std::int64_t rows,
    std::int64_t side) {
  torch_model model{"cnn", {}, random_batch(seed, {rows, channels, side, side})};
  for (std::int64_t s = 0; s < slices; ++s) {
    torch_slice& slice = model.slices.emplace_back();
    parameter_maker make(seed, slice, s);
    for (std::int64_t l = 0; l < layers; ++l) append(slice, residual_conv(make, channels));
    if (s == slices - 1) append(slice, [](at::Tensor const& y) { return y.pow(2).mean(); });
  }
  return model;
}

}  // namespace zbpp::test
