// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"

#include "math.hpp"
#include "matrix.hpp"

#include <algorithm>
#include <cmath>

namespace gpt {
namespace {

// The constants of GELU in its tanh form: x * sigmoid(slope * (x + cubic * x^3)).
// @source Hendrycks and Gimpel, arXiv 1606.08415 sec. 2; slope is 2 * sqrt(2 / pi)
struct gelu_constants {
  static constexpr float slope = 1.5957691216F;
  static constexpr float cubic = 0.044715F;
};

}  // namespace

void linear_forward_add(
    linear_shape s, float const* x, float const* weight, float const* bias, float* y) {
  for (index r = 0; r < s.rows; ++r)
    for (index c = 0; c < s.outputs; ++c) y[r * s.outputs + c] += bias[c];
  as_matrix(y, s.rows, s.outputs, s.outputs).noalias() +=
      as_matrix(x, s.rows, s.inputs, s.inputs) *
      as_matrix(weight, s.outputs, s.inputs, s.inputs).transpose();
}

void linear_forward(
    linear_shape s, float const* x, float const* weight, float const* bias, float* y) {
  std::fill(y, y + s.rows * s.outputs, 0.0F);
  linear_forward_add(s, x, weight, bias, y);
}

void linear_backward_input(linear_shape s, float const* dy, float const* weight, float* dx) {
  as_matrix(dx, s.rows, s.inputs, s.inputs).noalias() =
      as_matrix(dy, s.rows, s.outputs, s.outputs) *
      as_matrix(weight, s.outputs, s.inputs, s.inputs);
}

void linear_backward_weight(
    linear_shape s, float const* x, float const* dy, float* dweight, float* dbias) {
  as_matrix(dweight, s.outputs, s.inputs, s.inputs).noalias() +=
      as_matrix(dy, s.rows, s.outputs, s.outputs).transpose() *
      as_matrix(x, s.rows, s.inputs, s.inputs);
  for (index r = 0; r < s.rows; ++r)
    for (index c = 0; c < s.outputs; ++c) dbias[c] += dy[r * s.outputs + c];
}

void scale_shift(
    index rows, index width, float const* normal, float const* gamma, float const* beta, float* y) {
  for (index r = 0; r < rows; ++r)
    for (index c = 0; c < width; ++c) y[r * width + c] = normal[r * width + c] * gamma[c] + beta[c];
}

void layer_norm_forward(index rows, index width, float const* x, float* normal, float* scale) {
  constexpr float epsilon = 1e-5F;
  auto const share = 1.0F / static_cast<float>(width);
  for (index r = 0; r < rows; ++r) {
    auto const* const in = x + r * width;
    auto* const out = normal + r * width;
    float const mean = share * sum(width, [=](index c) { return in[c]; });
    for (index c = 0; c < width; ++c) out[c] = in[c] - mean;
    float const variance = share * sum(width, [=](index c) { return out[c] * out[c]; });
    scale[r] = 1.0F / std::sqrt(variance + epsilon);
    for (index c = 0; c < width; ++c) out[c] *= scale[r];
  }
}

void layer_norm_backward_input(
    index rows,
    index width,
    float const* dy,
    float const* gamma,
    float const* normal,
    float const* scale,
    float* dx) {
  auto const share = 1.0F / static_cast<float>(width);
  for (index r = 0; r < rows; ++r) {
    auto const* const up = dy + r * width;
    auto const* const in = normal + r * width;
    auto* const out = dx + r * width;
    float const mean = share * sum(width, [=](index c) { return up[c] * gamma[c]; });
    float const slope = share * sum(width, [=](index c) { return up[c] * gamma[c] * in[c]; });
    for (index c = 0; c < width; ++c)
      out[c] += scale[r] * (up[c] * gamma[c] - mean - in[c] * slope);
  }
}

void layer_norm_backward_weight(
    index rows, index width, float const* dy, float const* normal, float* dgamma, float* dbeta) {
  for (index r = 0; r < rows; ++r)
    for (index c = 0; c < width; ++c) {
      dgamma[c] += dy[r * width + c] * normal[r * width + c];
      dbeta[c] += dy[r * width + c];
    }
}

void gelu_forward(index count, float const* x, float* y) {
  using k = gelu_constants;
  for (index i = 0; i < count; ++i)
    y[i] = x[i] * sigmoid(k::slope * (x[i] + k::cubic * x[i] * x[i] * x[i]));
}

void gelu_backward_input_in_place(index count, float const* dy, float* x) {
  using k = gelu_constants;
  for (index i = 0; i < count; ++i) {
    float const square = x[i] * x[i];
    float const listener = sigmoid(k::slope * (x[i] + k::cubic * square * x[i]));
    float const inner = k::slope * (1.0F + 3.0F * k::cubic * square);
    x[i] = dy[i] * (listener + x[i] * listener * (1.0F - listener) * inner);
  }
}

void embedding_forward(
    index positions,
    index width,
    std::uint8_t const* tokens,
    float const* token_table,
    float const* position_table,
    float* rows) {
  for (index t = 0; t < positions; ++t)
    for (index c = 0; c < width; ++c)
      rows[t * width + c] = token_table[tokens[t] * width + c] + position_table[t * width + c];
}

void embedding_backward_weight(
    index positions,
    index width,
    std::uint8_t const* tokens,
    float const* dy,
    float* token_gradient,
    float* position_gradient) {
  for (index t = 0; t < positions; ++t)
    for (index c = 0; c < width; ++c) {
      token_gradient[tokens[t] * width + c] += dy[t * width + c];
      position_gradient[t * width + c] += dy[t * width + c];
    }
}

double cross_entropy_in_place(
    index positions, index classes, std::uint8_t const* targets, float scale, float* logits) {
  double total = 0.0;
  for (index t = 0; t < positions; ++t) {
    auto* const row = logits + t * classes;
    float const top = largest(row, classes);
    float const target = row[targets[t]] - top;
    for (index c = 0; c < classes; ++c) row[c] = exponential(row[c] - top);
    float const mass = sum(classes, [=](index c) { return row[c]; });
    total += std::log(static_cast<double>(mass)) - static_cast<double>(target);
    float const share = scale / mass;
    for (index c = 0; c < classes; ++c) row[c] *= share;
    row[targets[t]] -= scale;
  }
  return total;
}

}  // namespace gpt
