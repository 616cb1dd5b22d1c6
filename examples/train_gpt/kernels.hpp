// SPDX-License-Identifier: Apache-2.0
//
// The maths of the model on plain arrays, row major, in three kinds: `*_forward`,
// `*_backward_input` (gradient of the input, pass B) and `*_backward_weight` (gradient of the
// parameters, pass W; always added to what is there).
//
// Every kernel is deterministic and keeps nothing between calls. Only matrix products are Eigen's;
// the rest are own loops, because Eigen's own treat the elements before the first aligned one
// differently, and the bits of a result shall not depend on where an array lies.
#pragma once

#include "math.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstdint>

#if !defined(EIGEN_DONT_PARALLELIZE)
#error "define EIGEN_DONT_PARALLELIZE: a rank is one thread, and a product has one order of sums"
#endif

namespace gpt {

/// Is a matrix of floats, row major.
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Sees an array [rows, columns] as a matrix; rows lie `stride` elements apart.
[[nodiscard]] inline auto as_matrix(float* x, index rows, index columns, index stride) {
  return Eigen::Map<matrix, Eigen::Unaligned, Eigen::OuterStride<>>(
      x, rows, columns, Eigen::OuterStride<>(stride));
}

/// Sees an array [rows, columns] that is only read as a matrix.
[[nodiscard]] inline auto as_matrix(float const* x, index rows, index columns, index stride) {
  return Eigen::Map<matrix const, Eigen::Unaligned, Eigen::OuterStride<>>(
      x, rows, columns, Eigen::OuterStride<>(stride));
}

/// Sizes of a linear layer: x [rows, inputs], y [rows, outputs], weight [outputs, inputs].
struct linear_shape {
  index rows;
  index inputs;
  index outputs;
};

/// Adds x weight^T + bias to y.
inline void linear_forward_add(
    linear_shape s, float const* x, float const* weight, float const* bias, float* y) {
  for (index r = 0; r < s.rows; ++r)
    for (index c = 0; c < s.outputs; ++c) y[r * s.outputs + c] += bias[c];
  as_matrix(y, s.rows, s.outputs, s.outputs).noalias() +=
      as_matrix(x, s.rows, s.inputs, s.inputs) *
      as_matrix(weight, s.outputs, s.inputs, s.inputs).transpose();
}

/// Sets y to x weight^T + bias.
inline void linear_forward(
    linear_shape s, float const* x, float const* weight, float const* bias, float* y) {
  std::fill(y, y + s.rows * s.outputs, 0.0F);
  linear_forward_add(s, x, weight, bias, y);
}

/// Sets dx to dy weight.
inline void linear_backward_input(linear_shape s, float const* dy, float const* weight, float* dx) {
  as_matrix(dx, s.rows, s.inputs, s.inputs).noalias() =
      as_matrix(dy, s.rows, s.outputs, s.outputs) *
      as_matrix(weight, s.outputs, s.inputs, s.inputs);
}

/// Adds dy^T x to dweight and the column sums of dy to dbias.
inline void linear_backward_weight(
    linear_shape s, float const* x, float const* dy, float* dweight, float* dbias) {
  as_matrix(dweight, s.outputs, s.inputs, s.inputs).noalias() +=
      as_matrix(dy, s.rows, s.outputs, s.outputs).transpose() *
      as_matrix(x, s.rows, s.inputs, s.inputs);
  for (index r = 0; r < s.rows; ++r)
    for (index c = 0; c < s.outputs; ++c) dbias[c] += dy[r * s.outputs + c];
}

/// Sets y to normal * gamma + beta, column by column; all [rows, width].
inline void scale_shift(
    index rows, index width, float const* normal, float const* gamma, float const* beta, float* y) {
  for (index r = 0; r < rows; ++r)
    for (index c = 0; c < width; ++c) y[r * width + c] = normal[r * width + c] * gamma[c] + beta[c];
}

/// Sets `normal` [rows, width] to the rows of x with mean 0 and variance 1, and `scale` [rows] to
/// the factors that made it so.
inline void layer_norm_forward(
    index rows, index width, float const* x, float* normal, float* scale) {
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

/// Adds to dx [rows, width] the gradient that dy, the gradient of the scaled and shifted rows, has
/// through the norm.
inline void layer_norm_backward_input(
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

/// Adds to dgamma and dbeta [width] what dy [rows, width] says about them.
inline void layer_norm_backward_weight(
    index rows, index width, float const* dy, float const* normal, float* dgamma, float* dbeta) {
  for (index r = 0; r < rows; ++r)
    for (index c = 0; c < width; ++c) {
      dgamma[c] += dy[r * width + c] * normal[r * width + c];
      dbeta[c] += dy[r * width + c];
    }
}

/// Holds the constants of GELU in its tanh form: x * sigmoid(slope * (x + cubic * x^3)).
/// @source Hendrycks and Gimpel, arXiv 1606.08415 sec. 2; slope is 2 * sqrt(2 / pi)
struct gelu_constants {
  static constexpr float slope = 1.5957691216F;
  static constexpr float cubic = 0.044715F;
};

/// Sets y to GELU of x, element by element.
inline void gelu_forward(index count, float const* x, float* y) {
  using k = gelu_constants;
  for (index i = 0; i < count; ++i)
    y[i] = x[i] * sigmoid(k::slope * (x[i] + k::cubic * x[i] * x[i] * x[i]));
}

/// Sets x, the input of GELU, to the gradient of that input.
inline void gelu_backward_input_in_place(index count, float const* dy, float* x) {
  using k = gelu_constants;
  for (index i = 0; i < count; ++i) {
    float const square = x[i] * x[i];
    float const gate = sigmoid(k::slope * (x[i] + k::cubic * square * x[i]));
    float const inner = k::slope * (1.0F + 3.0F * k::cubic * square);
    x[i] = dy[i] * (gate + x[i] * gate * (1.0F - gate) * inner);
  }
}

/// Sets `rows` [positions, width] to token row + position row for each byte of a sequence.
inline void embedding_forward(
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

/// Adds each row of dy [positions, width] to the gradients of its token's and position's rows.
inline void embedding_backward_weight(
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

/// Replaces logits [positions, classes] by `scale` times the gradient of the cross-entropy.
/// @return the sum over positions of -log of the probability of the target, in nats
[[nodiscard]] inline double cross_entropy_in_place(
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
