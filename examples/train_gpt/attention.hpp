// SPDX-License-Identifier: Apache-2.0
//
// Causal multi-head attention between its two linear layers. It has no parameters, so there is no
// weight pass. Queries, keys and values of a token lie side by side: qkv [tokens, 3, heads, width].
#pragma once

#include "kernels.hpp"

#include <cmath>

namespace gpt {

/// Sizes of the attention of one microbatch.
struct attention_shape {
  index sequences;
  index context;
  index heads;

  /// @return elements of a token going in and out
  [[nodiscard]] constexpr index width() const { return heads * head_width; }
  /// @return elements of the probabilities [sequences, heads, context, context]
  [[nodiscard]] constexpr index probabilities() const {
    return sequences * heads * context * context;
  }
  /// @return elements of scratch memory that the backward pass needs
  [[nodiscard]] constexpr index backward_scratch() const {
    return context * (context + head_width);
  }
};

/// Sets each row t of scores [context, context] to the softmax of its first t + 1 elements, and the
/// rest, which lies in the future, to 0.
inline void causal_softmax_in_place(index context, float* scores) {
  for (index t = 0; t < context; ++t) {
    auto* const row = scores + t * context;
    index const seen = t + 1;
    float const top = largest(row, seen);
    for (index j = 0; j < seen; ++j) row[j] = exponential(row[j] - top);
    float const share = 1.0F / sum(seen, [=](index j) { return row[j]; });
    for (index j = 0; j < seen; ++j) row[j] *= share;
    for (index j = seen; j < context; ++j) row[j] = 0.0F;
  }
}

/// Sets dp [context, context], the gradient of the probabilities p, to `scale` times that of the
/// scores.
inline void causal_softmax_backward_in_place(
    index context, float scale, float const* p, float* dp) {
  for (index t = 0; t < context; ++t) {
    auto const* const of = p + t * context;
    auto* const row = dp + t * context;
    index const seen = t + 1;
    float const mean = sum(seen, [=](index j) { return of[j] * row[j]; });
    for (index j = 0; j < seen; ++j) row[j] = scale * of[j] * (row[j] - mean);
    for (index j = seen; j < context; ++j) row[j] = 0.0F;
  }
}

/// Sets `probabilities` and y [tokens, width], the mean of the values under them.
inline void attention_forward(attention_shape s, float const* qkv, float* probabilities, float* y) {
  index const width = s.width();
  index const n = s.context;
  auto const scale = 1.0F / std::sqrt(static_cast<float>(head_width));
  for (index b = 0; b < s.sequences; ++b)
    for (index h = 0; h < s.heads; ++h) {
      auto const* const first = qkv + b * n * 3 * width + h * head_width;
      auto const query = as_matrix(first, n, head_width, 3 * width);
      auto const key = as_matrix(first + width, n, head_width, 3 * width);
      auto const value = as_matrix(first + 2 * width, n, head_width, 3 * width);
      auto* const of = probabilities + (b * s.heads + h) * n * n;
      auto p = as_matrix(of, n, n, n);
      p.noalias() = (scale * query) * key.transpose();
      causal_softmax_in_place(n, of);
      as_matrix(y + b * n * width + h * head_width, n, head_width, width).noalias() = p * value;
    }
}

/// Sets qkv to its own gradient, given dy [tokens, width].
/// @param scratch  `backward_scratch()` elements
inline void attention_backward_input_in_place(
    attention_shape s, float const* dy, float const* probabilities, float* scratch, float* qkv) {
  index const width = s.width();
  index const n = s.context;
  auto const scale = 1.0F / std::sqrt(static_cast<float>(head_width));
  auto scores_gradient = as_matrix(scratch, n, n, n);
  auto query_gradient = as_matrix(scratch + n * n, n, head_width, head_width);
  for (index b = 0; b < s.sequences; ++b)
    for (index h = 0; h < s.heads; ++h) {
      auto* const first = qkv + b * n * 3 * width + h * head_width;
      auto query = as_matrix(first, n, head_width, 3 * width);
      auto key = as_matrix(first + width, n, head_width, 3 * width);
      auto value = as_matrix(first + 2 * width, n, head_width, 3 * width);
      auto const* const of = probabilities + (b * s.heads + h) * n * n;
      auto const p = as_matrix(of, n, n, n);
      auto const up = as_matrix(dy + b * n * width + h * head_width, n, head_width, width);
      scores_gradient.noalias() = up * value.transpose();
      value.noalias() = p.transpose() * up;
      causal_softmax_backward_in_place(n, scale, of, scratch);
      query_gradient.noalias() = scores_gradient * key;
      key.noalias() = scores_gradient.transpose() * query;
      query = query_gradient;
    }
}

}  // namespace gpt
