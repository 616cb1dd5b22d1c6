// SPDX-License-Identifier: Apache-2.0
//
// Causal multi-head attention between its two linear layers, by batched products: a batch is all
// heads of all sequences. What a head needs of a token lies side by side, and tokens of one
// position do, so that every matrix of the batch is one distance from the one before:
// qkv [context, sequences, heads, 3, head], rows [context, sequences, heads, head], and
// scores [sequences, heads, context, context].
// @source Megatron-LM, github.com/NVIDIA/Megatron-LM, has the same layout
#pragma once

#include "layers.hpp"

#include <algorithm>
#include <cmath>

namespace gpt::cuda {

/// Finds the matrices of the batch, and multiplies them block by block.
class heads_of {
 public:
  explicit heads_of(shape const& s) : s_(s) {}

  /// @return queries (0), keys (1) or values (2) [context, head]
  [[nodiscard]] factor in_qkv(bf16 const* qkv, index which) const {
    return {qkv + which * s_.head(), 3 * row(), 3 * s_.head()};
  }
  /// @return where their gradients go
  [[nodiscard]] product_result to_qkv(bf16* dqkv, index which) const {
    return {dqkv + which * s_.head(), 3 * row(), 3 * s_.head()};
  }
  /// @return the heads' parts of rows [context, head]
  [[nodiscard]] factor in_rows(bf16 const* rows) const { return {rows, row(), s_.head()}; }
  /// @return where those go
  [[nodiscard]] product_result to_rows(bf16* rows) const { return {rows, row(), s_.head()}; }

  /// Enqueues scores = scale * a b^T of each query with the keys of its block and those before.
  void make_scores(compute const& use, factor const& a, factor b, bf16* scores, float scale) const {
    b.transposed = true;
    each_block([&](index first, index last) {
      use.multiply(
          use.on,
          {.rows = last - first,
           .columns = last,
           .inner = s_.head(),
           .a = rows_from(a, first),
           .b = b,
           .to = {scores + first * s_.context, s_.context, s_.context * s_.context},
           .scale = scale,
           .batch = count()});
    });
  }
  /// Enqueues result = scores b: of each query, with the keys of its block and those before.
  void of_queries(
      compute const& use, bf16 const* scores, factor const& b, product_result const& to) const {
    each_block([&](index first, index last) {
      use.multiply(
          use.on,
          {.rows = last - first,
           .columns = s_.head(),
           .inner = last,
           .a = rows_from({scores, s_.context, s_.context * s_.context}, first),
           .b = b,
           .to = {to.narrow + first * to.stride, to.stride, to.next},
           .batch = count()});
    });
  }
  /// Enqueues result = scores^T b: of each key, with the queries of its block and those after.
  void of_keys(
      compute const& use, bf16 const* scores, factor const& b, product_result const& to) const {
    each_block([&](index first, index last) {
      factor seen{scores + first, s_.context, s_.context * s_.context, true};
      use.multiply(
          use.on,
          {.rows = last - first,
           .columns = s_.head(),
           .inner = s_.context - first,
           .a = rows_from(seen, first),
           .b = rows_from(b, first),
           .to = {to.narrow + first * to.stride, to.stride, to.next},
           .batch = count()});
    });
  }

 private:
  [[nodiscard]] index count() const { return s_.sequences * s_.heads; }
  [[nodiscard]] index row() const { return s_.sequences * s_.width; }

  [[nodiscard]] static factor rows_from(factor f, index first) {
    f.data += first * f.stride;
    return f;
  }
  template <class Do>
  void each_block(Do const& block) const {
    for (index first = 0; first < s_.context; first += s_.causal_block())
      block(first, std::min(first + s_.causal_block(), s_.context));
  }

  shape s_;
};

/// @return what scores are scaled by
[[nodiscard]] inline float score_scale(shape const& s) {
  return 1.0F / std::sqrt(static_cast<float>(s.head()));
}

/// Sets `probabilities` [sequences, heads, context, context] and mixed [tokens, width].
inline void attention_forward(
    compute const& use, shape const& s, bf16 const* qkv, bf16* probabilities, bf16* mixed) {
  heads_of const at(s);
  at.make_scores(use, at.in_qkv(qkv, 0), at.in_qkv(qkv, 1), probabilities, score_scale(s));
  run(use.on,
      causal_softmax{
          .count = s.score_rows(),
          .context = s.context,
          .block = s.causal_block(),
          .scores = probabilities});
  at.of_queries(use, probabilities, at.in_qkv(qkv, 2), at.to_rows(mixed));
}

/// Sets dqkv from dmixed [tokens, width].
/// @param dscores  room for as many elements as `probabilities` has
inline void attention_backward(
    compute const& use,
    shape const& s,
    bf16 const* dmixed,
    bf16 const* qkv,
    bf16 const* probabilities,
    bf16* dscores,
    bf16* dqkv) {
  heads_of const at(s);
  at.make_scores(use, at.in_rows(dmixed), at.in_qkv(qkv, 2), dscores, 1.0F);
  at.of_keys(use, probabilities, at.in_rows(dmixed), at.to_qkv(dqkv, 2));
  run(use.on,
      causal_softmax_backward{
          .count = s.score_rows(),
          .context = s.context,
          .block = s.causal_block(),
          .scale = score_scale(s),
          .probabilities = probabilities,
          .d = dscores});
  at.of_queries(use, dscores, at.in_qkv(qkv, 1), at.to_qkv(dqkv, 0));
  at.of_keys(use, dscores, at.in_qkv(qkv, 0), at.to_qkv(dqkv, 1));
}

}  // namespace gpt::cuda
