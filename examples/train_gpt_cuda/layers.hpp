// SPDX-License-Identifier: Apache-2.0
//
// The layers that blocks and head are made of, in the three passes: affine, linear, and attention.
// Everything is enqueued. Rows are those of all tokens of a microbatch.
#pragma once

#include "products.hpp"
#include "shape.hpp"
#include "weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>

namespace gpt::cuda {

/// Is what the passes of a chunk compute with.
struct compute {
  cudaStream_t on;
  shape const& s;
  products const& multiply;
  weights const& p;

  /// Enqueues a kernel.
  template <class Rows>
  void run(Rows const& what) const {
    cuda::run(on, what);
  }
};

/// Collects what W adds up over runs of tokens, until one kernel adds it to the gradients.
class gradient_sums {
 public:
  /// @param room  starts with what `bytes` counts
  gradient_sums(compute const& use, std::byte* room)
      : use_(&use), runs_(token_runs{use.s.tokens()}.count()), room_(room) {}

  /// @return bytes of the sums of some widths in all
  [[nodiscard]] static index bytes(index tokens, index widths) {
    auto const of_runs = pieces::bytes<float>(token_runs{tokens}.count() * widths);
    return static_cast<index>(of_runs + add_sums::most * pieces::line);
  }
  /// @return room for the sums of a piece's gradient, which come from all runs of tokens
  [[nodiscard]] float* of_runs(parameter p) { return take(runs_, p); }
  /// @return room for those of a gradient that are summed over all tokens
  [[nodiscard]] float* of_all(parameter p) { return take(1, p); }
  /// Enqueues what adds all of them to their gradients.
  void add() const { use_->run(what_); }

 private:
  [[nodiscard]] float* take(index runs, parameter p) {
    auto* const sums = room_.take<float>(runs * p.size);
    what_.items[what_.count++] = {sums, runs, p.size, use_->p.gradient(p)};
    return sums;
  }

  compute const* use_;
  index runs_;
  pieces room_;
  add_sums what_{};
};

/// Is a linear layer, x [tokens, inputs] -> x weight^T + bias [tokens, outputs]; the weight is
/// [outputs, inputs].
class linear {
 public:
  /// Adds its parameters to those of a part of the model.
  /// @param deviation  of the first values of the weight
  linear(
      weights& to,
      index part,
      std::string_view weight,
      std::string_view bias,
      index inputs,
      index outputs,
      float deviation)
      : inputs_(inputs),
        outputs_(outputs),
        weight_(to.add(part, weight, outputs * inputs, 0.0F, deviation)),
        bias_(to.add(part, bias, outputs, 0.0F, 0.0F)) {}

  /// @return the bias
  [[nodiscard]] parameter bias() const { return bias_; }

  /// Sets y to x weight^T, without the bias.
  void forward_unbiased(compute const& use, bf16 const* x, float* y) const {
    use.multiply(use.on, unbiased(use, x, {y, outputs_}));
  }
  /// Sets y to x weight^T + bias, plus `residual`, which may be y or null.
  void forward(compute const& use, bf16 const* x, bf16 const* residual, bf16* y) const {
    auto what = unbiased(use, x, {y, outputs_});
    what.then = {.what = epilogue::kind::bias, .bias = use.p.rounded(bias_)};
    what.residual = residual;
    use.multiply(use.on, what);
  }
  /// Sets `in` to x weight^T + bias and y to GELU of it.
  void forward_gelu(compute const& use, bf16 const* x, bf16* in, bf16* y) const {
    auto what = unbiased(use, x, {y, outputs_});
    what.then = {.what = epilogue::kind::bias_gelu, .bias = use.p.rounded(bias_), .gelu_input = in};
    use.multiply(use.on, what);
  }
  /// Sets dx to dy weight.
  /// @param gelu_input  null, or the input of the GELU that made x: dx is then the gradient of that
  void backward_input(
      compute const& use, bf16 const* dy, bf16* dx, bf16* gelu_input = nullptr) const {
    product what{
        .rows = use.s.tokens(),
        .columns = inputs_,
        .inner = outputs_,
        .a = {dy, outputs_},
        .b = {use.p.rounded(weight_), inputs_},
        .to = {dx, inputs_}};
    if (gelu_input != nullptr)
      what.then = {.what = epilogue::kind::gelu_backward, .gelu_input = gelu_input};
    use.multiply(use.on, what);
  }
  /// Adds dy^T x to the gradient of the weight, and collects the column sums of dy.
  void backward_weight(
      compute const& use, bf16 const* x, bf16 const* dy, gradient_sums& sums) const {
    product what{
        .rows = outputs_,
        .columns = inputs_,
        .inner = use.s.tokens(),
        .a = {.data = dy, .stride = outputs_, .transposed = true},
        .b = {x, inputs_},
        .to = {use.p.gradient(weight_), inputs_},
        .then = {.what = epilogue::kind::row_sums},
        .adds = true};
    if (use.multiply.has(what)) {
      what.then.row_sums = sums.of_all(bias_);
    } else {
      what.then = {};
      use.run(column_sums{what.inner, outputs_, dy, sums.of_runs(bias_)});
    }
    use.multiply(use.on, what);
  }

 private:
  [[nodiscard]] product unbiased(compute const& use, bf16 const* x, product_result const& y) const {
    return {
        .rows = use.s.tokens(),
        .columns = outputs_,
        .inner = inputs_,
        .a = {x, inputs_},
        .b = {.data = use.p.rounded(weight_), .stride = inputs_, .transposed = true},
        .to = y};
  }

  index inputs_;
  index outputs_;
  parameter weight_;
  parameter bias_;
};

/// Is a norm of rows [tokens, width], with the scale and the shift after it.
class affine {
 public:
  /// Adds its parameters to those of a part of the model.
  affine(weights& to, index part, std::string_view gamma, std::string_view beta, index width)
      : width_(width),
        gamma_(to.add(part, gamma, width, 1.0F, 0.0F)),
        beta_(to.add(part, beta, width, 0.0F, 0.0F)) {}

  /// Normalises x and sets `normed` to the result; keeps `normal` and `scale`.
  void forward(compute const& use, bf16 const* x, bf16* normal, float* scale, bf16* normed) const {
    auto const* const gamma = use.p.value(gamma_);
    auto const* const beta = use.p.value(beta_);
    use.run(norm{use.s.tokens(), width_, x, gamma, beta, normal, scale, normed});
  }
  /// Sets dx to the gradient through scale, shift and norm, plus `residual`.
  void backward_input(
      compute const& use,
      bf16 const* dy,
      bf16 const* normal,
      float const* scale,
      bf16 const* residual,
      bf16* dx) const {
    auto const* const gamma = use.p.value(gamma_);
    use.run(norm_backward{use.s.tokens(), width_, dy, gamma, normal, scale, residual, dx});
  }
  /// Collects the sums for both gradients, and makes `normed` again: cheaper than keeping it.
  void backward_weight(
      compute const& use,
      bf16 const* dy,
      bf16 const* normal,
      bf16* normed,
      gradient_sums& sums) const {
    auto const* const gamma = use.p.value(gamma_);
    auto const* const beta = use.p.value(beta_);
    auto* const to_gamma = sums.of_runs(gamma_);
    auto* const to_beta = sums.of_runs(beta_);
    use.run(
        norm_weights{use.s.tokens(), width_, dy, normal, gamma, beta, normed, to_gamma, to_beta});
  }

 private:
  index width_;
  parameter gamma_;
  parameter beta_;
};

/// Is causal attention of all heads of all sequences, which are one batch of products, each cut in
/// blocks of queries. Scores are [sequences, heads, context, context], and so are probabilities;
/// qkv [tokens, 3 width] has the query, the key and the value of a head beside each other.
class attention {
 public:
  /// @param use  outlives the object
  explicit attention(compute const& use)
      : use_(&use),
        s_(use.s),
        row_(s_.sequences * s_.width),
        scale_(1.0F / std::sqrt(static_cast<float>(s_.head()))) {}

  /// Sets `probabilities` and mixed [tokens, width].
  void forward(bf16 const* qkv, bf16* probabilities, bf16* mixed) const {
    make_scores(in_qkv(qkv, 0), in_qkv(qkv, 1), probabilities, scale_);
    use_->run(causal_softmax{s_.score_rows(), s_.context, s_.causal_block(), probabilities});
    of_queries(probabilities, in_qkv(qkv, 2), {mixed, row_, s_.head()});
  }
  /// Sets dqkv from dmixed [tokens, width].
  /// @param dscores  room for as many elements as `probabilities` has
  void backward(
      bf16 const* dmixed,
      bf16 const* qkv,
      bf16 const* probabilities,
      bf16* dscores,
      bf16* dqkv) const {
    factor const dout{dmixed, row_, s_.head()};
    make_scores(dout, in_qkv(qkv, 2), dscores, 1.0F);
    of_keys(probabilities, dout, to_qkv(dqkv, 2));
    auto const block = s_.causal_block();
    use_->run(causal_softmax_backward{
        s_.score_rows(), s_.context, block, scale_, probabilities, dscores});
    of_queries(dscores, in_qkv(qkv, 1), to_qkv(dqkv, 0));
    of_keys(dscores, in_qkv(qkv, 0), to_qkv(dqkv, 1));
  }

 private:
  // Queries (0), keys (1) or values (2) [context, head].
  [[nodiscard]] factor in_qkv(bf16 const* qkv, index which) const {
    return {qkv + which * s_.head(), 3 * row_, 3 * s_.head()};
  }
  [[nodiscard]] product_result to_qkv(bf16* dqkv, index which) const {
    return {dqkv + which * s_.head(), 3 * row_, 3 * s_.head()};
  }
  // Some blocks of scores, or of rows, from a row on.
  [[nodiscard]] factor scores_from(bf16 const* scores, index first) const {
    return {scores + first * s_.context, s_.context, s_.context * s_.context};
  }
  [[nodiscard]] static factor rows_from(factor f, index first) {
    f.data += first * f.stride;
    return f;
  }
  [[nodiscard]] static product_result rows_from(product_result const& to, index first) {
    return {to.narrow + first * to.stride, to.stride, to.next};
  }

  // Enqueues scores = scale * a b^T of each query with the keys of its block and those before.
  void make_scores(factor const& a, factor b, bf16* scores, float scale) const {
    b.transposed = true;
    auto const all = s_.context * s_.context;
    each_block([&](index first, index last) {
      return product{
          .rows = last - first,
          .columns = last,
          .inner = s_.head(),
          .a = rows_from(a, first),
          .b = b,
          .to = {scores + first * s_.context, s_.context, all},
          .scale = scale};
    });
  }
  // Enqueues result = scores b: of each query, with the keys of its block and those before.
  void of_queries(bf16 const* scores, factor const& b, product_result const& to) const {
    each_block([&](index first, index last) {
      return product{
          .rows = last - first,
          .columns = s_.head(),
          .inner = last,
          .a = scores_from(scores, first),
          .b = b,
          .to = rows_from(to, first)};
    });
  }
  // Enqueues result = scores^T b: of each key, with the queries of its block and those after.
  void of_keys(bf16 const* scores, factor const& b, product_result const& to) const {
    each_block([&](index first, index last) {
      auto seen = scores_from(scores + first, first);
      seen.transposed = true;
      return product{
          .rows = last - first,
          .columns = s_.head(),
          .inner = s_.context - first,
          .a = seen,
          .b = rows_from(b, first),
          .to = rows_from(to, first)};
    });
  }
  template <class Make>
  void each_block(Make const& make) const {
    for (index first = 0; first < s_.context; first += s_.causal_block()) {
      auto what = make(first, std::min(first + s_.causal_block(), s_.context));
      what.batch = s_.sequences * s_.heads;
      use_->multiply(use_->on, what);
    }
  }

  compute const* use_;
  shape s_;
  index row_;    // of all sequences at one position
  float scale_;  // of scores
};

}  // namespace gpt::cuda
