// SPDX-License-Identifier: Apache-2.0
//
// The layers with parameters that blocks and head are made of, in the three passes; everything is
// enqueued.
#pragma once

#include "products.hpp"
#include "shape.hpp"
#include "weights.hpp"

namespace gpt::cuda {

/// Is what the passes of a chunk compute with.
struct compute {
  cudaStream_t on;
  products& multiply;
  weights const& p;
};

/// Adds the column sums of dy [tokens, width], or of its product with `factor`, to a gradient.
/// @param sums  room for [column_sums::runs(tokens), width]
inline void add_column_sums(
    compute const& use,
    index tokens,
    index width,
    bf16 const* dy,
    bf16 const* factor,
    float* sums,
    float* gradient) {
  run(use.on,
      column_sums{.tokens = tokens, .width = width, .dy = dy, .factor = factor, .sums = sums});
  run(use.on,
      add_sums{
          .runs = column_sums::runs(tokens), .width = width, .sums = sums, .gradient = gradient});
}

/// Is a linear layer, x [tokens, inputs] -> x weight^T [tokens, outputs]; the weight is
/// [outputs, inputs]. The bias is added by the kernel that comes next.
struct linear {
  index inputs;
  index outputs;
  parameter weight;
  parameter bias;

  /// Sets y to x weight^T, without the bias.
  template <class Out>
  void forward(compute const& use, index tokens, bf16 const* x, Out* y) const {
    use.multiply(
        use.on,
        {.rows = tokens,
         .columns = outputs,
         .inner = inputs,
         .a = {.data = x, .stride = inputs},
         .b = {.data = use.p.rounded(weight), .stride = inputs, .transposed = true},
         .to = {y, outputs}});
  }
  /// Sets dx to dy weight.
  void backward_input(compute const& use, index tokens, bf16 const* dy, bf16* dx) const {
    use.multiply(
        use.on,
        {.rows = tokens,
         .columns = inputs,
         .inner = outputs,
         .a = {.data = dy, .stride = outputs},
         .b = {.data = use.p.rounded(weight), .stride = inputs},
         .to = {dx, inputs}});
  }
  /// Adds dy^T x and the column sums of dy to the gradients.
  /// @param sums  room for the runs of `outputs` columns
  void backward_weight(
      compute const& use, index tokens, bf16 const* x, bf16 const* dy, float* sums) const {
    use.multiply(
        use.on,
        {.rows = outputs,
         .columns = inputs,
         .inner = tokens,
         .a = {.data = dy, .stride = outputs, .transposed = true},
         .b = {.data = x, .stride = inputs},
         .to = {use.p.gradient(weight), inputs},
         .adds = true});
    add_column_sums(use, tokens, outputs, dy, nullptr, sums, use.p.gradient(bias));
  }
};

/// Is the scale and the shift after a norm.
struct affine {
  parameter gamma;
  parameter beta;

  /// @return what a norm kernel gives, into these arrays
  [[nodiscard]] norm_result result(
      compute const& use, bf16* normal, bf16* normed, float* scale) const {
    return {use.p.value(gamma), use.p.value(beta), normal, normed, scale};
  }
  /// Sets dx to the gradient through scale, shift and norm, plus `past`.
  void backward_input(
      compute const& use,
      index tokens,
      index width,
      bf16 const* dy,
      bf16 const* normal,
      float const* scale,
      bf16 const* past,
      bf16* dx) const {
    run(use.on,
        norm_backward{
            .tokens = tokens,
            .width = width,
            .dy = dy,
            .gamma = use.p.value(gamma),
            .normal = normal,
            .scale = scale,
            .past = past,
            .dx = dx});
  }
  /// Makes again what F gave to the layer after the norm: cheaper than keeping it.
  void again(
      compute const& use, index tokens, index width, bf16 const* normal, bf16* normed) const {
    run(use.on,
        scale_shift{
            .tokens = tokens,
            .width = width,
            .normal = normal,
            .gamma = use.p.value(gamma),
            .beta = use.p.value(beta),
            .y = normed});
  }
  /// Adds to the gradients of both.
  /// @param sums  room for the runs of `width` columns
  void backward_weight(
      compute const& use,
      index tokens,
      index width,
      bf16 const* dy,
      bf16 const* normal,
      float* sums) const {
    add_column_sums(use, tokens, width, dy, normal, sums, use.p.gradient(gamma));
    add_column_sums(use, tokens, width, dy, nullptr, sums, use.p.gradient(beta));
  }
};

}  // namespace gpt::cuda
