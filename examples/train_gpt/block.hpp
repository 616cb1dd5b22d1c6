// SPDX-License-Identifier: Apache-2.0
//
// A pre-norm transformer block, x + attention(norm(x)) and then x + mlp(norm(x)), in three passes.
//
// What a microbatch keeps between the passes is sorted by who needs it last. The inputs of GELU and
// of attention are needed by B and their gradients by W, so B writes these over those.
#pragma once

#include "attention.hpp"
#include "kernels.hpp"
#include "parameters.hpp"

#include <algorithm>
#include <cmath>

namespace gpt {

/// Counts floats that a part keeps of a microbatch, and that its passes need as scratch.
struct footprint {
  index until_b = 0;    ///< from F to the end of B
  index until_w = 0;    ///< from F to the end of W
  index gradients = 0;  ///< from B to the end of W
  index scratch = 0;    ///< during a pass
};

/// @return what a part takes whose microbatch keeps a `Saved`
template <class Saved>
[[nodiscard]] footprint footprint_of(model_config const& c, index scratch) {
  carver until_b;
  carver until_w;
  carver gradients;
  Saved const layout(c, until_b, until_w, gradients);
  static_cast<void>(layout);
  return {until_b.used(), until_w.used(), gradients.used(), scratch};
}

/// Is a transformer block [tokens, width] -> [tokens, width].
class block {
 public:
  /// Points at what a microbatch keeps in a block; T tokens, C = width.
  struct saved {
    float* scale_1;        ///< [T], until B
    float* scale_2;        ///< [T], until B
    float* probabilities;  ///< [sequences, heads, context, context], until B
    float* normal_1;       ///< [T, C], until W
    float* qkv;            ///< [T, 3C], until W; B makes it its gradient
    float* mixed;          ///< [T, C] out of attention, until W
    float* normal_2;       ///< [T, C], until W
    float* hidden;         ///< [T, 4C] into GELU, until W; B makes it its gradient
    float* active;         ///< [T, 4C] out of GELU, until W
    float* dnorm_1;        ///< [T, C], from B until W
    float* dnorm_2;        ///< [T, C], from B until W
    float* dmiddle;        ///< [T, C], from B until W: gradient between attention and MLP

    /// Cuts it out of the three allocations, always in the same order.
    saved(model_config const& c, carver& until_b, carver& until_w, carver& gradients)
        : scale_1(until_b.take(c.tokens())),
          scale_2(until_b.take(c.tokens())),
          probabilities(until_b.take(shape(c).probabilities())),
          normal_1(until_w.take(c.tokens() * c.width)),
          qkv(until_w.take(c.tokens() * 3 * c.width)),
          mixed(until_w.take(c.tokens() * c.width)),
          normal_2(until_w.take(c.tokens() * c.width)),
          hidden(until_w.take(c.tokens() * c.hidden())),
          active(until_w.take(c.tokens() * c.hidden())),
          dnorm_1(gradients.take(c.tokens() * c.width)),
          dnorm_2(gradients.take(c.tokens() * c.width)),
          dmiddle(gradients.take(c.tokens() * c.width)) {}
  };

  /// Adds its parameters to a set; `part` is its place in the model.
  block(model_config const& config, index part, parameter_set& to) : c_(config) {
    auto const width = c_.width;
    auto const weight = 1.0F / std::sqrt(static_cast<float>(width));
    // Branches are added to the stream 2 * layers times; this keeps the sum's size.
    auto const branch = weight / std::sqrt(2.0F * static_cast<float>(c_.layers));
    gamma_1_ = to.add(part, "norm 1 gamma", width, 1.0F, 0.0F);
    beta_1_ = to.add(part, "norm 1 beta", width, 0.0F, 0.0F);
    qkv_weight_ = to.add(part, "qkv weight", 3 * width * width, 0.0F, weight);
    qkv_bias_ = to.add(part, "qkv bias", 3 * width, 0.0F, 0.0F);
    out_weight_ = to.add(part, "attention out weight", width * width, 0.0F, branch);
    out_bias_ = to.add(part, "attention out bias", width, 0.0F, 0.0F);
    gamma_2_ = to.add(part, "norm 2 gamma", width, 1.0F, 0.0F);
    beta_2_ = to.add(part, "norm 2 beta", width, 0.0F, 0.0F);
    up_weight_ = to.add(part, "mlp up weight", c_.hidden() * width, 0.0F, weight);
    up_bias_ = to.add(part, "mlp up bias", c_.hidden(), 0.0F, 0.0F);
    down_weight_ = to.add(part, "mlp down weight", width * c_.hidden(), 0.0F, branch / 2.0F);
    down_bias_ = to.add(part, "mlp down bias", width, 0.0F, 0.0F);
  }

  /// @return what a microbatch takes in a block of this size
  [[nodiscard]] static footprint takes(model_config const& c) {
    auto const backward = c.tokens() * c.width + shape(c).backward_scratch();
    return footprint_of<saved>(c, std::max(c.tokens() * c.hidden(), backward));
  }

  /// Sets y [T, C] from x [T, C].
  void forward(
      parameter_set const& p, saved const& s, float const* x, float* scratch, float* y) const {
    auto const rows = c_.tokens();
    auto const count = rows * c_.width;
    auto* const normed = scratch;
    layer_norm_forward(rows, c_.width, x, s.normal_1, s.scale_1);
    scale_shift(rows, c_.width, s.normal_1, p.value(gamma_1_), p.value(beta_1_), normed);
    linear_forward(qkv(), normed, p.value(qkv_weight_), p.value(qkv_bias_), s.qkv);
    attention_forward(shape(c_), s.qkv, s.probabilities, s.mixed);
    std::copy(x, x + count, y);
    linear_forward_add(out(), s.mixed, p.value(out_weight_), p.value(out_bias_), y);
    layer_norm_forward(rows, c_.width, y, s.normal_2, s.scale_2);
    scale_shift(rows, c_.width, s.normal_2, p.value(gamma_2_), p.value(beta_2_), normed);
    linear_forward(up(), normed, p.value(up_weight_), p.value(up_bias_), s.hidden);
    gelu_forward(rows * c_.hidden(), s.hidden, s.active);
    linear_forward_add(down(), s.active, p.value(down_weight_), p.value(down_bias_), y);
  }

  /// Sets dx [T, C] from dy [T, C].
  void backward_input(
      parameter_set const& p, saved const& s, float const* dy, float* scratch, float* dx) const {
    auto const rows = c_.tokens();
    auto const count = rows * c_.width;
    linear_backward_input(down(), dy, p.value(down_weight_), scratch);
    gelu_backward_input_in_place(rows * c_.hidden(), scratch, s.hidden);
    linear_backward_input(up(), s.hidden, p.value(up_weight_), s.dnorm_2);
    std::copy(dy, dy + count, s.dmiddle);
    layer_norm_backward_input(
        rows, c_.width, s.dnorm_2, p.value(gamma_2_), s.normal_2, s.scale_2, s.dmiddle);
    linear_backward_input(out(), s.dmiddle, p.value(out_weight_), scratch);
    attention_backward_input_in_place(shape(c_), scratch, s.probabilities, scratch + count, s.qkv);
    linear_backward_input(qkv(), s.qkv, p.value(qkv_weight_), s.dnorm_1);
    std::copy(s.dmiddle, s.dmiddle + count, dx);
    layer_norm_backward_input(
        rows, c_.width, s.dnorm_1, p.value(gamma_1_), s.normal_1, s.scale_1, dx);
  }

  /// Adds to the gradients of the parameters. What the norms gave to the linear layers is made
  /// again here: a product and a sum an element are cheaper than keeping it.
  void backward_weight(parameter_set& p, saved const& s, float const* dy, float* scratch) const {
    auto const rows = c_.tokens();
    auto* const normed = scratch;
    linear_backward_weight(down(), s.active, dy, p.gradient(down_weight_), p.gradient(down_bias_));
    scale_shift(rows, c_.width, s.normal_2, p.value(gamma_2_), p.value(beta_2_), normed);
    linear_backward_weight(up(), normed, s.hidden, p.gradient(up_weight_), p.gradient(up_bias_));
    layer_norm_backward_weight(
        rows, c_.width, s.dnorm_2, s.normal_2, p.gradient(gamma_2_), p.gradient(beta_2_));
    linear_backward_weight(
        out(), s.mixed, s.dmiddle, p.gradient(out_weight_), p.gradient(out_bias_));
    scale_shift(rows, c_.width, s.normal_1, p.value(gamma_1_), p.value(beta_1_), normed);
    linear_backward_weight(qkv(), normed, s.qkv, p.gradient(qkv_weight_), p.gradient(qkv_bias_));
    layer_norm_backward_weight(
        rows, c_.width, s.dnorm_1, s.normal_1, p.gradient(gamma_1_), p.gradient(beta_1_));
  }

 private:
  [[nodiscard]] static attention_shape shape(model_config const& c) {
    return {c.sequences, c.context, c.heads()};
  }
  [[nodiscard]] linear_shape qkv() const { return {c_.tokens(), c_.width, 3 * c_.width}; }
  [[nodiscard]] linear_shape out() const { return {c_.tokens(), c_.width, c_.width}; }
  [[nodiscard]] linear_shape up() const { return {c_.tokens(), c_.width, c_.hidden()}; }
  [[nodiscard]] linear_shape down() const { return {c_.tokens(), c_.hidden(), c_.width}; }

  model_config c_;
  parameter gamma_1_, beta_1_, qkv_weight_, qkv_bias_, out_weight_, out_bias_;
  parameter gamma_2_, beta_2_, up_weight_, up_bias_, down_weight_, down_bias_;
};

}  // namespace gpt
