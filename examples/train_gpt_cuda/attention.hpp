// SPDX-License-Identifier: Apache-2.0
//
// Causal multi-head attention between its two linear layers, by batched products: a batch is the
// heads of a sequence. Queries, keys and values of a token lie side by side:
// qkv [tokens, 3, heads, head].
#pragma once

#include "layers.hpp"

#include <cmath>

namespace gpt::cuda {

/// Finds the matrices of one sequence; each is one of a batch of heads.
class heads_of {
 public:
  heads_of(shape const& s, index sequence) : s_(s), sequence_(sequence) {}

  /// @return queries (0), keys (1) or values (2) [context, head], or their gradients
  template <class Value>
  [[nodiscard]] Value* part(Value* qkv, index which) const {
    return qkv + sequence_ * s_.context * 3 * s_.width + which * s_.width;
  }
  /// @return the heads' parts of rows [context, head]
  template <class Value>
  [[nodiscard]] Value* of_rows(Value* rows) const {
    return rows + sequence_ * s_.context * s_.width;
  }
  /// @return the scores [context, context]
  template <class Value>
  [[nodiscard]] Value* scores(Value* all) const {
    return all + sequence_ * s_.heads * s_.context * s_.context;
  }
  /// @return how factors and results among qkv lie
  [[nodiscard]] factor in_qkv(bf16 const* qkv, index which, bool transposed = false) const {
    return {part(qkv, which), 3 * s_.width, s_.head(), transposed};
  }
  [[nodiscard]] factor in_rows(bf16 const* rows) const {
    return {of_rows(rows), s_.width, s_.head()};
  }
  [[nodiscard]] factor in_scores(bf16 const* all, bool transposed = false) const {
    return {scores(all), s_.context, s_.context * s_.context, transposed};
  }
  [[nodiscard]] product_result to_qkv(bf16* qkv, index which) const {
    return {part(qkv, which), 3 * s_.width, s_.head()};
  }
  [[nodiscard]] product_result to_rows(bf16* rows) const {
    return {of_rows(rows), s_.width, s_.head()};
  }
  [[nodiscard]] product_result to_scores(bf16* all) const {
    return {scores(all), s_.context, s_.context * s_.context};
  }

  /// Enqueues scores = scale * a b, with the inner size of a head.
  void make_scores(compute const& use, factor a, factor b, bf16* all, float scale) const {
    use.multiply(
        use.on,
        {.rows = s_.context,
         .columns = s_.context,
         .inner = s_.head(),
         .a = a,
         .b = b,
         .to = to_scores(all),
         .scale = scale,
         .batch = s_.heads});
  }
  /// Enqueues to = scores b, with a head's columns.
  void weigh(compute const& use, factor scores_, factor b, product_result to) const {
    use.multiply(
        use.on,
        {.rows = s_.context,
         .columns = s_.head(),
         .inner = s_.context,
         .a = scores_,
         .b = b,
         .to = to,
         .batch = s_.heads});
  }

 private:
  shape s_;
  index sequence_;
};

/// @return what scores are scaled by
[[nodiscard]] inline float score_scale(shape const& s) {
  return 1.0F / std::sqrt(static_cast<float>(s.head()));
}

/// Sets `probabilities` [sequences, heads, context, context] and mixed [tokens, width].
inline void attention_forward(
    compute const& use, shape const& s, bf16 const* qkv, bf16* probabilities, bf16* mixed) {
  for (index b = 0; b < s.sequences; ++b) {
    heads_of const at(s, b);
    at.make_scores(use, at.in_qkv(qkv, 0), at.in_qkv(qkv, 1, true), probabilities, score_scale(s));
  }
  run(use.on,
      causal_softmax{.count = s.score_rows(), .context = s.context, .scores = probabilities});
  for (index b = 0; b < s.sequences; ++b) {
    heads_of const at(s, b);
    at.weigh(use, at.in_scores(probabilities), at.in_qkv(qkv, 2), at.to_rows(mixed));
  }
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
  for (index b = 0; b < s.sequences; ++b) {
    heads_of const at(s, b);
    at.make_scores(use, at.in_rows(dmixed), at.in_qkv(qkv, 2, true), dscores, 1.0F);
    at.weigh(use, at.in_scores(probabilities, true), at.in_rows(dmixed), at.to_qkv(dqkv, 2));
  }
  run(use.on,
      causal_softmax_backward{
          .count = s.score_rows(),
          .context = s.context,
          .scale = score_scale(s),
          .probabilities = probabilities,
          .d = dscores});
  for (index b = 0; b < s.sequences; ++b) {
    heads_of const at(s, b);
    at.weigh(use, at.in_scores(dscores), at.in_qkv(qkv, 1), at.to_qkv(dqkv, 0));
    at.weigh(use, at.in_scores(dscores, true), at.in_qkv(qkv, 0), at.to_qkv(dqkv, 1));
  }
}

}  // namespace gpt::cuda
