// SPDX-License-Identifier: Apache-2.0
//
// The maths of example 04: a dense layer with tanh on vectors of 16 floats, its three passes apart.
#pragma once

#include <zbpp/runtime/pass_context.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>

namespace toy {

inline constexpr std::size_t width = 16;

/// Gives a buffer for one vector.
inline zbpp::buffer vector(zbpp::pass_context ctx) { return ctx.allocate(width * sizeof(float)); }

/// Computes y = tanh(W x), shapes [width, width] and [width].
class layer {
 public:
  layer() {
    for (std::size_t i = 0; i < w_.size(); ++i) w_[i] = 0.2F * std::sin(1.0F + float(i));
  }

  zbpp::buffer forward(zbpp::buffer const& x, zbpp::pass_context ctx) const {
    auto y = vector(ctx);
    for (std::size_t o = 0; o < width; ++o) {
      float sum = 0;
      for (std::size_t i = 0; i < width; ++i) sum += w_[o * width + i] * x.as<float>()[i];
      y.as<float>()[o] = std::tanh(sum);
    }
    return y;
  }

  /// Turns dy into the gradient of W x and gives the gradient of x.
  zbpp::buffer backward_input(
      zbpp::buffer const& y, zbpp::buffer const& dy, zbpp::pass_context ctx) const {
    auto dx = vector(ctx);
    for (std::size_t i = 0; i < width; ++i) dx.as<float>()[i] = 0;
    for (std::size_t o = 0; o < width; ++o) {
      auto& d = dy.as<float>()[o];
      d *= 1 - y.as<float>()[o] * y.as<float>()[o];
      for (std::size_t i = 0; i < width; ++i) dx.as<float>()[i] += w_[o * width + i] * d;
    }
    return dx;
  }

  void backward_weight(zbpp::buffer const& x, zbpp::buffer const& dy) {
    for (std::size_t o = 0; o < width; ++o)
      for (std::size_t i = 0; i < width; ++i)
        dw_[o * width + i] += dy.as<float>()[o] * x.as<float>()[i];
  }

  std::span<float> weights() { return w_; }
  std::span<float> gradients() { return dw_; }

  void update() {
    for (std::size_t i = 0; i < w_.size(); ++i) w_[i] -= 0.05F * std::exchange(dw_[i], 0.0F);
  }

 private:
  std::array<float, width * width> w_{};
  std::array<float, width * width> dw_{};
};

/// Gives the input of a microbatch.
inline zbpp::buffer batch(int microbatch, zbpp::pass_context ctx) {
  auto x = vector(ctx);
  for (std::size_t i = 0; i < width; ++i) x.as<float>()[i] = std::cos(float(microbatch) + float(i));
  return x;
}

/// Gives half the squared distance to 0.5.
inline double loss(zbpp::buffer const& y) {
  double sum = 0;
  for (float v : y.as<float>()) sum += 0.5 * (v - 0.5F) * (v - 0.5F);
  return sum;
}

inline zbpp::buffer loss_gradient(zbpp::buffer const& y, zbpp::pass_context ctx) {
  auto dy = vector(ctx);
  for (std::size_t i = 0; i < width; ++i) dy.as<float>()[i] = y.as<float>()[i] - 0.5F;
  return dy;
}

}  // namespace toy
