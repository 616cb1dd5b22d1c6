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

#include "config.hpp"

#include <cstdint>

namespace gpt {

/// Sizes of a linear layer: x [rows, inputs], y [rows, outputs], weight [outputs, inputs].
struct linear_shape {
  index rows;
  index inputs;
  index outputs;
};

/// Adds x weight^T + bias to y.
void linear_forward_add(
    linear_shape s, float const* x, float const* weight, float const* bias, float* y);

/// Sets y to x weight^T + bias.
void linear_forward(
    linear_shape s, float const* x, float const* weight, float const* bias, float* y);

/// Sets dx to dy weight.
void linear_backward_input(linear_shape s, float const* dy, float const* weight, float* dx);

/// Adds dy^T x to dweight and the column sums of dy to dbias.
void linear_backward_weight(
    linear_shape s, float const* x, float const* dy, float* dweight, float* dbias);

/// Sets y to normal * gamma + beta, column by column; all [rows, width].
void scale_shift(
    index rows, index width, float const* normal, float const* gamma, float const* beta, float* y);

/// Sets `normal` [rows, width] to the rows of x with mean 0 and variance 1, and `scale` [rows] to
/// the factors that made it so.
void layer_norm_forward(index rows, index width, float const* x, float* normal, float* scale);

/// Adds to dx [rows, width] the gradient that dy, the gradient of the scaled and shifted rows, has
/// through the norm.
void layer_norm_backward_input(
    index rows,
    index width,
    float const* dy,
    float const* gamma,
    float const* normal,
    float const* scale,
    float* dx);

/// Adds to dgamma and dbeta [width] what dy [rows, width] says about them.
void layer_norm_backward_weight(
    index rows, index width, float const* dy, float const* normal, float* dgamma, float* dbeta);

/// Sets y to GELU of x, element by element.
void gelu_forward(index count, float const* x, float* y);

/// Sets x, the input of GELU, to the gradient of that input.
void gelu_backward_input_in_place(index count, float const* dy, float* x);

/// Sets `rows` [positions, width] to token row + position row for each byte of a sequence.
void embedding_forward(
    index positions,
    index width,
    std::uint8_t const* tokens,
    float const* token_table,
    float const* position_table,
    float* rows);

/// Adds each row of dy [positions, width] to the gradients of its token's and position's rows.
void embedding_backward_weight(
    index positions,
    index width,
    std::uint8_t const* tokens,
    float const* dy,
    float* token_gradient,
    float* position_gradient);

/// Replaces logits [positions, classes] by `scale` times the gradient of the cross-entropy.
/// @return the sum over positions of -log of the probability of the target, in nats
[[nodiscard]] double cross_entropy_in_place(
    index positions, index classes, std::uint8_t const* targets, float scale, float* logits);

}  // namespace gpt
