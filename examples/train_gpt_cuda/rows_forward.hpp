// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of F do to one row, each a class whose members are the kernel's arguments.
// Arithmetic is fp32; what is kept is rounded to bf16 once.
#pragma once

#include "lanes.hpp"
#include "shape.hpp"
#include "touching.hpp"

#include <cmath>
#include <cstdint>

namespace gpt::cuda {

/// Says where the sequences of a microbatch start in the text.
struct sequence_starts {
  std::uint8_t const* text;  ///< on the device
  index context;
  std::int64_t first[most_sequences];

  /// @return the byte at position t of the microbatch
  [[nodiscard]] __host__ __device__ std::uint8_t token(index t) const {
    return text[first[t / context] + t % context];
  }
  /// @return the byte that follows it
  [[nodiscard]] __host__ __device__ std::uint8_t target(index t) const {
    return text[first[t / context] + t % context + 1];
  }
  /// Notes the bytes that a microbatch of `tokens` reads.
  void touches(touching& t, index tokens) const {
    for (index b = 0; b * context < tokens; ++b) t.reads(text + first[b], context + 1);
  }
};

/// Gives e^x / (1 + e^x).
[[nodiscard]] __host__ __device__ inline float listener(float x) {
  return 1.0F / (1.0F + expf(-x));
}

/// Is GELU in its tanh form, as x * listener(slope * (x + cubic * x^3)).
/// @source Hendrycks and Gimpel, arXiv 1606.08415 sec. 2; slope is 2 * sqrt(2 / pi)
struct gelu {
  static constexpr float slope = 1.5957691216F;
  static constexpr float cubic = 0.044715F;

  /// @return its value
  [[nodiscard]] __host__ __device__ static float of(float x) {
    return x * listener(slope * (x + cubic * x * x * x));
  }
  /// @return its derivative
  [[nodiscard]] __host__ __device__ static float slope_at(float x) {
    float const open = listener(slope * (x + cubic * x * x * x));
    float const inner = slope * (1.0F + 3.0F * cubic * x * x);
    return open + x * open * (1.0F - open) * inner;
  }
};

/// Sets y [tokens, width] to token row + position row.
struct embed {
  static constexpr char const* name = "embed";
  sequence_starts of;
  index tokens;
  index width;
  float const* token_table;     ///< [vocabulary, width]
  float const* position_table;  ///< [context, width]
  bf16* y;

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    of.touches(t, tokens);
    t.reads(token_table, vocabulary * width);
    t.reads(position_table, of.context * width);
    t.writes(y, tokens * width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const token = token_table + of.token(row) * width;
    auto const* const position = position_table + row % of.context * width;
    auto* const out = y + row * width;
    at.each(width, [=](index c) { out[c] = narrow(token[c] + position[c]); });
  }
};

/// Holds what a norm gives and keeps; all [tokens, width] but for `scale` [tokens].
struct norm_result {
  float const* gamma;  ///< [width]
  float const* beta;   ///< [width]
  bf16* normal;        ///< mean 0, variance 1
  bf16* normed;        ///< normal * gamma + beta
  float* scale;        ///< what made the variance 1

  void touches(touching& t, index tokens, index width) const {
    t.reads(gamma, width);
    t.reads(beta, width);
    t.writes(normal, tokens * width);
    t.writes(normed, tokens * width);
    t.writes(scale, tokens);
  }
  /// Normalises a row.
  __host__ __device__ void of(lanes const& at, bf16 const* x, index row, index width) const {
    constexpr float epsilon = 1e-5F;
    float const share = 1.0F / static_cast<float>(width);
    float const mean = share * at.sum(width, [=](index c) { return wide(x[c]); });
    float const variance = share * at.sum(width, [=](index c) {
      float const off = wide(x[c]) - mean;
      return off * off;
    });
    float const factor = 1.0F / sqrtf(variance + epsilon);
    auto const self = *this;
    at.each(width, [=](index c) {
      // Rounded first: W makes `normed` again from what was kept.
      bf16 const rounded = narrow((wide(x[c]) - mean) * factor);
      self.normal[row * width + c] = rounded;
      self.normed[row * width + c] = narrow(wide(rounded) * self.gamma[c] + self.beta[c]);
    });
    at.each(1, [=](index) { self.scale[row] = factor; });
  }
};

/// Normalises the rows of x [tokens, width].
struct norm {
  static constexpr char const* name = "norm";
  index tokens;
  index width;
  bf16 const* x;
  norm_result result;

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    t.reads(x, tokens * width);
    result.touches(t, tokens, width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    result.of(at, x + row * width, row, width);
  }
};

/// Sets y to x + branch + bias; all [tokens, width].
struct add_branch {
  static constexpr char const* name = "add branch";
  index tokens;
  index width;
  bf16 const* x;
  bf16 const* branch;
  float const* bias;  ///< [width]
  bf16* y;

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    t.reads(x, tokens * width);
    t.reads(branch, tokens * width);
    t.reads(bias, width);
    t.writes(y, tokens * width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const self = *this;
    at.each(width, [=](index c) {
      auto const i = row * self.width + c;
      self.y[i] = narrow(wide(self.x[i]) + wide(self.branch[i]) + self.bias[c]);
    });
  }
};

/// Sets y to x + branch + bias and normalises y.
struct add_branch_norm {
  static constexpr char const* name = "add branch, norm";
  add_branch add;
  norm_result result;

  [[nodiscard]] index rows() const { return add.tokens; }
  void touches(touching& t) const {
    add.touches(t);
    result.touches(t, add.tokens, add.width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    add(at, row);
    result.of(at, add.y + row * add.width, row, add.width);
  }
};

/// Adds a bias [width] to x [tokens, width].
struct add_bias {
  static constexpr char const* name = "add bias";
  index tokens;
  index width;
  float const* bias;
  bf16* x;

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    t.reads(bias, width);
    t.changes(x, tokens * width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const from = bias;
    auto* const to = x + row * width;
    at.each(width, [=](index c) { to[c] = narrow(wide(to[c]) + from[c]); });
  }
};

/// Adds a bias [width] to x [tokens, width] and sets `active` to GELU of it.
struct bias_gelu {
  static constexpr char const* name = "bias, gelu";
  index tokens;
  index width;
  float const* bias;
  bf16* x;
  bf16* active;

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    t.reads(bias, width);
    t.changes(x, tokens * width);
    t.writes(active, tokens * width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const from = bias;
    auto* const to = x + row * width;
    auto* const out = active + row * width;
    at.each(width, [=](index c) {
      bf16 const sum = narrow(wide(to[c]) + from[c]);
      to[c] = sum;
      out[c] = narrow(gelu::of(wide(sum)));
    });
  }
};

/// Sets each row of scores [count, context] to the softmax of what it may see, its first
/// row mod context + 1 elements, and the rest to 0.
struct causal_softmax {
  static constexpr char const* name = "causal softmax";
  index count;
  index context;
  bf16* scores;

  [[nodiscard]] index rows() const { return count; }
  void touches(touching& t) const { t.changes(scores, count * context); }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto* const x = scores + row * context;
    index const seen = row % context + 1;
    float const top = at.largest(seen, [=](index j) { return wide(x[j]); });
    float const mass = at.sum(seen, [=](index j) { return expf(wide(x[j]) - top); });
    at.each(
        context, [=](index j) { x[j] = narrow(j < seen ? expf(wide(x[j]) - top) / mass : 0.0F); });
  }
};

/// Makes the loss of every token, and the gradient of its logits.
struct cross_entropy {
  static constexpr char const* name = "cross entropy";
  sequence_starts of;
  index tokens;
  float share;          ///< of a token's loss in the loss that gradients are of
  float const* logits;  ///< [tokens, vocabulary], without the bias
  float const* bias;    ///< [vocabulary]
  bf16* dlogits;        ///< [tokens, vocabulary]
  float* losses;        ///< [tokens], in nats

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    of.touches(t, tokens);
    t.reads(logits, tokens * vocabulary);
    t.reads(bias, vocabulary);
    t.writes(dlogits, tokens * vocabulary);
    t.writes(losses, tokens);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const x = logits + row * vocabulary;
    auto const* const b = bias;
    auto* const dx = dlogits + row * vocabulary;
    auto* const loss = losses + row;
    float const part = share;
    index const wanted = of.target(row);
    float const top = at.largest(vocabulary, [=](index c) { return x[c] + b[c]; });
    float const mass = at.sum(vocabulary, [=](index c) { return expf(x[c] + b[c] - top); });
    at.each(vocabulary, [=](index c) {
      float const chance = expf(x[c] + b[c] - top) / mass;
      dx[c] = narrow(part * (chance - (c == wanted ? 1.0F : 0.0F)));
    });
    at.each(1, [=](index) { *loss = logf(mass) - (x[wanted] + b[wanted] - top); });
  }
};

/// Sets `mean` to the mean of some losses.
struct mean_loss {
  static constexpr char const* name = "mean loss";
  index tokens;
  float const* losses;
  float* mean;

  [[nodiscard]] index rows() const { return 1; }
  void touches(touching& t) const {
    t.reads(losses, tokens);
    t.writes(mean, 1);
  }
  __host__ __device__ void operator()(lanes const& at, index) const {
    auto const* const x = losses;
    auto* const to = mean;
    float const total = at.sum(tokens, [=](index i) { return x[i]; });
    float const count = static_cast<float>(tokens);
    at.each(1, [=](index) { *to = total / count; });
  }
};

}  // namespace gpt::cuda
