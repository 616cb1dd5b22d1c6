// SPDX-License-Identifier: Apache-2.0
//
// The layers with parameters that blocks and head are made of, in the three passes; everything is
// enqueued.
#pragma once

#include "products.hpp"
#include "shape.hpp"
#include "weights.hpp"

#include <cstddef>

namespace gpt::cuda {

/// Is what the passes of a chunk compute with.
struct compute {
  cudaStream_t on;
  products& multiply;
  weights const& p;
};

/// Collects what W adds up over runs of tokens, until one kernel adds it to the gradients.
class gradient_sums {
 public:
  /// @param room  starts with what `bytes` counts
  gradient_sums(index tokens, std::byte* room) : runs_{tokens}, room_(room) {}

  /// @return bytes of the sums of some widths in all
  [[nodiscard]] static std::size_t bytes(index tokens, index widths) {
    pieces counted;
    static_cast<void>(counted.take<float>(token_runs{tokens}.count() * widths));
    return counted.used() + add_sums::most * pieces::line;
  }
  /// @return room for the sums of a gradient [width], which come from all runs of tokens
  [[nodiscard]] float* of_runs(index width, float* gradient) {
    return take(runs_.count(), width, gradient);
  }
  /// @return room for those of a gradient that are summed over all tokens
  [[nodiscard]] float* of_all(index width, float* gradient) { return take(1, width, gradient); }
  /// Enqueues what adds all of them to their gradients.
  void add(cudaStream_t on) const { run(on, what_); }

 private:
  [[nodiscard]] float* take(index runs, index width, float* gradient) {
    auto* const sums = room_.take<float>(runs * width);
    what_.items[what_.count++] = {sums, runs, width, gradient};
    return sums;
  }

  token_runs runs_;
  pieces room_;
  add_sums what_{};
};

/// Is a linear layer, x [tokens, inputs] -> x weight^T + bias [tokens, outputs]; the weight is
/// [outputs, inputs].
struct linear {
  index inputs;
  index outputs;
  parameter weight;
  parameter bias;

  /// Sets y to x weight^T, without the bias.
  template <class Out>
  void forward_unbiased(compute const& use, index tokens, bf16 const* x, Out* y) const {
    use.multiply(use.on, unbiased(use, tokens, x, {y, outputs}));
  }
  /// Sets y to x weight^T + bias, plus `residual`, which may be y.
  /// @param residual  null: nothing
  void forward(
      compute const& use, index tokens, bf16 const* x, bf16 const* residual, bf16* y) const {
    auto what = unbiased(use, tokens, x, {y, outputs});
    what.then = {.what = epilogue::kind::bias, .bias = use.p.rounded(bias)};
    what.residual = residual;
    use.multiply(use.on, what);
  }
  /// Sets `in` to x weight^T + bias and y to GELU of it.
  void forward_gelu(compute const& use, index tokens, bf16 const* x, bf16* in, bf16* y) const {
    auto what = unbiased(use, tokens, x, {y, outputs});
    what.then = {.what = epilogue::kind::bias_gelu, .bias = use.p.rounded(bias), .gelu_input = in};
    use.multiply(use.on, what);
  }
  /// Sets dx to dy weight.
  /// @param gelu_input  null, or the input of the GELU that made x: dx is then the gradient of that
  void backward_input(
      compute const& use,
      index tokens,
      bf16 const* dy,
      bf16* dx,
      bf16* gelu_input = nullptr) const {
    product what{
        .rows = tokens,
        .columns = inputs,
        .inner = outputs,
        .a = {.data = dy, .stride = outputs},
        .b = {.data = use.p.rounded(weight), .stride = inputs},
        .to = {dx, inputs}};
    if (gelu_input != nullptr)
      what.then = {.what = epilogue::kind::gelu_backward, .gelu_input = gelu_input};
    use.multiply(use.on, what);
  }
  /// Adds dy^T x to the gradient of the weight, and collects the column sums of dy.
  void backward_weight(
      compute const& use, index tokens, bf16 const* x, bf16 const* dy, gradient_sums& sums) const {
    product what{
        .rows = outputs,
        .columns = inputs,
        .inner = tokens,
        .a = {.data = dy, .stride = outputs, .transposed = true},
        .b = {.data = x, .stride = inputs},
        .to = {use.p.gradient(weight), inputs},
        .then = {.what = epilogue::kind::row_sums},
        .adds = true};
    auto* const to = use.p.gradient(bias);
    if (use.multiply.has(what)) {
      what.then.row_sums = sums.of_all(outputs, to);
    } else {
      what.then = {};
      run(use.on,
          column_sums{
              .tokens = tokens, .width = outputs, .dy = dy, .sums = sums.of_runs(outputs, to)});
    }
    use.multiply(use.on, what);
  }

 private:
  [[nodiscard]] product unbiased(
      compute const& use, index tokens, bf16 const* x, product_result const& y) const {
    return {
        .rows = tokens,
        .columns = outputs,
        .inner = inputs,
        .a = {.data = x, .stride = inputs},
        .b = {.data = use.p.rounded(weight), .stride = inputs, .transposed = true},
        .to = y};
  }
};

/// Is a norm of rows [tokens, width], with the scale and the shift after it.
struct affine {
  index width;
  parameter gamma;
  parameter beta;

  /// Normalises x and sets `normed` to the result; keeps `normal` and `scale`.
  void forward(
      compute const& use, index tokens, bf16 const* x, bf16* normal, float* scale, bf16* normed)
      const {
    run(use.on,
        norm{
            .tokens = tokens,
            .width = width,
            .x = x,
            .gamma = use.p.value(gamma),
            .beta = use.p.value(beta),
            .normal = normal,
            .normed = normed,
            .scale = scale});
  }
  /// Sets dx to the gradient through scale, shift and norm, plus `residual`.
  void backward_input(
      compute const& use,
      index tokens,
      bf16 const* dy,
      bf16 const* normal,
      float const* scale,
      bf16 const* residual,
      bf16* dx) const {
    run(use.on,
        norm_backward{
            .tokens = tokens,
            .width = width,
            .dy = dy,
            .gamma = use.p.value(gamma),
            .normal = normal,
            .scale = scale,
            .residual = residual,
            .dx = dx});
  }
  /// Collects the sums for both gradients, and makes `normed` again: cheaper than keeping it.
  void backward_weight(
      compute const& use,
      index tokens,
      bf16 const* dy,
      bf16 const* normal,
      bf16* normed,
      gradient_sums& sums) const {
    run(use.on,
        norm_weights{
            .tokens = tokens,
            .width = width,
            .dy = dy,
            .normal = normal,
            .gamma = use.p.value(gamma),
            .beta = use.p.value(beta),
            .y = normed,
            .gamma_sums = sums.of_runs(width, use.p.gradient(gamma)),
            .beta_sums = sums.of_runs(width, use.p.gradient(beta))});
  }
};

}  // namespace gpt::cuda
