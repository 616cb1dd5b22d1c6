// SPDX-License-Identifier: Apache-2.0
//
// The maths of example 18: y = x + B tanh(A x) on vectors of 8 floats, in parts of its 12 hidden
// units.
#pragma once

#include <zbpp/optim/layer.hpp>

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace toy {

using values = std::vector<float>;

inline constexpr std::size_t width = 8;
inline constexpr std::size_t hidden = 12;

inline void add(std::span<float> sum, std::span<float const> more) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

/// One of `members` equal parts of y = x + B tanh(A x): rows of A, columns of B.
class part {
 public:
  part(int stage, int member, int members)
      : units_(hidden / std::size_t(members)), w_(2 * units_ * width), dw_(w_.size()) {
    auto const first = std::size_t(member) * w_.size();
    for (std::size_t i = 0; i < w_.size(); ++i)
      w_[i] = 0.3F * std::sin(float(1 + stage) * float(1 + first + i));
  }

  /// Gives the part of the sum B tanh(A x); h is tanh(A x).
  values forward(values const& x, values& h) const {
    h.assign(units_, 0);
    values y(width);
    for (std::size_t u = 0; u < units_; ++u) {
      for (std::size_t i = 0; i < width; ++i) h[u] += a(u)[i] * x[i];
      h[u] = std::tanh(h[u]);
      for (std::size_t i = 0; i < width; ++i) y[i] += b(u)[i] * h[u];
    }
    return y;
  }
  /// Gives the part of the gradient of x that comes by these units; dh is the gradient of A x.
  values backward_input(values const& h, values const& dy, values& dh) const {
    dh.assign(units_, 0);
    values dx(width);
    for (std::size_t u = 0; u < units_; ++u) {
      for (std::size_t i = 0; i < width; ++i) dh[u] += b(u)[i] * dy[i];
      dh[u] *= 1 - h[u] * h[u];
      for (std::size_t i = 0; i < width; ++i) dx[i] += a(u)[i] * dh[u];
    }
    return dx;
  }
  void backward_weight(values const& x, values const& h, values const& dy, values const& dh) {
    for (std::size_t u = 0; u < units_; ++u)
      for (std::size_t i = 0; i < width; ++i) {
        dw_[2 * u * width + i] += dh[u] * x[i];
        dw_[(2 * u + 1) * width + i] += dy[i] * h[u];
      }
  }
  zbpp::optim::layer layer() { return {.weights = w_, .gradients = dw_}; }

 private:
  [[nodiscard]] float const* a(std::size_t unit) const { return &w_[2 * unit * width]; }
  [[nodiscard]] float const* b(std::size_t unit) const { return &w_[(2 * unit + 1) * width]; }

  std::size_t units_;
  values w_;  // by unit, its row of A and its column of B
  values dw_;
};

/// Gives the input of a microbatch.
inline values batch(int number) {
  values x(width);
  for (std::size_t i = 0; i < width; ++i) x[i] = std::cos(float(number) + float(i));
  return x;
}

/// Gives half the squared distance to 0.5.
inline double loss(values const& y) {
  double sum = 0;
  for (float v : y) sum += 0.5 * (v - 0.5F) * (v - 0.5F);
  return sum;
}

inline values loss_gradient(values y) {
  for (float& v : y) v -= 0.5F;
  return y;
}

}  // namespace toy
