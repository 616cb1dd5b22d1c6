// SPDX-License-Identifier: Apache-2.0
//
// Causal multi-head attention between its two linear layers. It has no parameters, so there is no
// weight pass. Queries, keys and values of a token lie side by side: qkv [tokens, 3, heads, width].
#pragma once

#include "config.hpp"

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
void causal_softmax_in_place(index context, float* scores);

/// Sets dp [context, context], the gradient of the probabilities p, to `scale` times that of the
/// scores.
void causal_softmax_backward_in_place(index context, float scale, float const* p, float* dp);

/// Sets `probabilities` and y [tokens, width], the mean of the values under them.
void attention_forward(attention_shape s, float const* qkv, float* probabilities, float* y);

/// Sets qkv to its own gradient, given dy [tokens, width].
/// @param scratch  `backward_scratch()` elements
void attention_backward_input_in_place(
    attention_shape s, float const* dy, float const* probabilities, float* scratch, float* qkv);

}  // namespace gpt
