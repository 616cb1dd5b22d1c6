// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include "math.hpp"
#include "matrix.hpp"

#include <cmath>

namespace gpt {

void causal_softmax_in_place(index context, float* scores) {
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

void causal_softmax_backward_in_place(index context, float scale, float const* p, float* dp) {
  for (index t = 0; t < context; ++t) {
    auto const* const of = p + t * context;
    auto* const row = dp + t * context;
    index const seen = t + 1;
    float const mean = sum(seen, [=](index j) { return of[j] * row[j]; });
    for (index j = 0; j < seen; ++j) row[j] = scale * of[j] * (row[j] - mean);
    for (index j = seen; j < context; ++j) row[j] = 0.0F;
  }
}

void attention_forward(attention_shape s, float const* qkv, float* probabilities, float* y) {
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

void attention_backward_input_in_place(
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
