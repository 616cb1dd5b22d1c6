// SPDX-License-Identifier: Apache-2.0
//
// The two ends of the model: the embedding, which turns bytes into rows and has a weight pass only,
// and the head, which turns rows into the loss.
#pragma once

#include "block.hpp"
#include "text.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace gpt {

/// Adds a row for each token to a set: those of the embedding or of the head, which may be tied.
/// @param deviation  of the normal numbers that it starts with, where it is not
[[nodiscard]] inline parameter add_table(
    model_config const& config,
    index part,
    std::string_view name,
    float deviation,
    parameter_set& to) {
  auto const size = vocabulary * config.width;
  return config.is_tied ? to.add_tied(part, name, size, 0.02F)
                        : to.add(part, name, size, 0.0F, deviation);
}

/// Is the sum of a token's row and a position's row: batch -> [tokens, width].
class embedding {
 public:
  /// Adds its parameters to a set; `part` is its place in the model.
  embedding(model_config const& config, index part, parameter_set& to)
      : c_(config),
        token_(add_table(config, part, "token table", 0.02F, to)),
        position_(to.add(part, "position table", c_.context * c_.width, 0.0F, 0.02F)) {}

  /// Sets y [tokens, width].
  void forward(parameter_set const& p, batch const& of, float* y) const {
    for (index b = 0; b < c_.sequences; ++b)
      embedding_forward(
          c_.context,
          c_.width,
          of.tokens(b),
          p.value(token_),
          p.value(position_),
          y + b * c_.context * c_.width);
  }

  /// Adds to the gradients of the parameters, given dy [tokens, width].
  void backward_weight(parameter_set& p, batch const& of, float const* dy) const {
    for (index b = 0; b < c_.sequences; ++b)
      embedding_backward_weight(
          c_.context,
          c_.width,
          of.tokens(b),
          dy + b * c_.context * c_.width,
          p.gradient(token_),
          p.gradient(position_));
  }

 private:
  model_config c_;
  parameter token_;
  parameter position_;
};

/// Is the last norm, the logits and the cross-entropy: [tokens, width] and batch -> loss.
class head {
 public:
  /// Points at what a microbatch keeps in the head; T tokens, C = width.
  struct saved {
    float* scale;    ///< [T], until B
    float* normal;   ///< [T, C], until W
    float* dlogits;  ///< [T, vocabulary], until W: F makes the gradient with the loss
    float* dnorm;    ///< [T, C], from B until W

    /// Cuts it out of the three allocations, always in the same order.
    saved(model_config const& c, carver& until_b, carver& until_w, carver& gradients)
        : scale(until_b.take(c.tokens())),
          normal(until_w.take(c.tokens() * c.width)),
          dlogits(until_w.take(c.tokens() * vocabulary)),
          dnorm(gradients.take(c.tokens() * c.width)) {}
  };

  /// Adds its parameters to a set; `part` is its place in the model.
  head(model_config const& config, index part, parameter_set& to) : c_(config) {
    auto const deviation = 1.0F / std::sqrt(static_cast<float>(c_.width));
    gamma_ = to.add(part, "last norm gamma", c_.width, 1.0F, 0.0F);
    beta_ = to.add(part, "last norm beta", c_.width, 0.0F, 0.0F);
    weight_ = add_table(c_, part, "head weight", deviation / 4.0F, to);
    bias_ = to.add(part, "head bias", vocabulary, 0.0F, 0.0F);
  }

  /// @return what a microbatch takes in a head of this size
  [[nodiscard]] static footprint takes(model_config const& c) {
    return footprint_of<saved>(c, c.tokens() * c.width);
  }

  /// Makes the loss from x [T, C], and its gradient to the logits, divided by `microbatches`.
  /// @return the mean over tokens of the cross-entropy, in nats
  [[nodiscard]] double forward(
      parameter_set const& p,
      saved const& s,
      batch const& of,
      int microbatches,
      float const* x,
      float* scratch) const {
    auto const rows = c_.tokens();
    layer_norm_forward(rows, c_.width, x, s.normal, s.scale);
    scale_shift(rows, c_.width, s.normal, p.value(gamma_), p.value(beta_), scratch);
    linear_forward(logits(), scratch, p.value(weight_), p.value(bias_), s.dlogits);
    auto const share = 1.0F / (static_cast<float>(microbatches) * static_cast<float>(rows));
    double total = 0.0;
    for (index b = 0; b < c_.sequences; ++b)
      total += cross_entropy_in_place(
          c_.context, vocabulary, of.targets(b), share, s.dlogits + b * c_.context * vocabulary);
    return total / static_cast<double>(rows);
  }

  /// Sets dx [T, C].
  void backward_input(parameter_set const& p, saved const& s, float* dx) const {
    linear_backward_input(logits(), s.dlogits, p.value(weight_), s.dnorm);
    std::fill(dx, dx + c_.tokens() * c_.width, 0.0F);
    layer_norm_backward_input(
        c_.tokens(), c_.width, s.dnorm, p.value(gamma_), s.normal, s.scale, dx);
  }

  /// Adds to the gradients of the parameters.
  void backward_weight(parameter_set& p, saved const& s, float* scratch) const {
    scale_shift(c_.tokens(), c_.width, s.normal, p.value(gamma_), p.value(beta_), scratch);
    linear_backward_weight(logits(), scratch, s.dlogits, p.gradient(weight_), p.gradient(bias_));
    layer_norm_backward_weight(
        c_.tokens(), c_.width, s.dnorm, s.normal, p.gradient(gamma_), p.gradient(beta_));
  }

 private:
  [[nodiscard]] linear_shape logits() const { return {c_.tokens(), c_.width, vocabulary}; }

  model_config c_;
  parameter gamma_, beta_, weight_, bias_;
};

}  // namespace gpt
