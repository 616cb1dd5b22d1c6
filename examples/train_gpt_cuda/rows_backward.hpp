// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of B, of W and after an optimizer step do to one row. What W adds up is fp32,
// and is added in an order that depends on nothing but the sizes: no atomics.
#pragma once

#include "rows_forward.hpp"

namespace gpt::cuda {

/// Sets x, the input of GELU, to the gradient of that input; all [tokens, width].
struct gelu_backward {
  static constexpr char const* name = "gelu backward";
  index tokens;
  index width;
  bf16 const* dy;
  bf16* x;

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    t.reads(dy, tokens * width);
    t.changes(x, tokens * width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const up = dy + row * width;
    auto* const in = x + row * width;
    at.each(width, [=](index c) { in[c] = narrow(wide(up[c]) * gelu::slope_at(wide(in[c]))); });
  }
};

/// Sets dx to the gradient through a norm, given that of what it gave, plus the gradient that came
/// past it; all [tokens, width].
struct norm_backward {
  static constexpr char const* name = "norm backward";
  index tokens;
  index width;
  bf16 const* dy;
  float const* gamma;  ///< [width]
  bf16 const* normal;
  float const* scale;  ///< [tokens]
  bf16 const* past;    ///< null: nothing came past it
  bf16* dx;

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    t.reads(dy, tokens * width);
    t.reads(gamma, width);
    t.reads(normal, tokens * width);
    t.reads(scale, tokens);
    t.reads(past, tokens * width);
    t.writes(dx, tokens * width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const up = dy + row * width;
    auto const* const in = normal + row * width;
    auto const* const beside = past == nullptr ? nullptr : past + row * width;
    auto* const out = dx + row * width;
    auto const* const g = gamma;
    float const factor = scale[row];
    float const share = 1.0F / static_cast<float>(width);
    float const mean = share * at.sum(width, [=](index c) { return wide(up[c]) * g[c]; });
    float const slope =
        share * at.sum(width, [=](index c) { return wide(up[c]) * g[c] * wide(in[c]); });
    at.each(width, [=](index c) {
      float const through = factor * (wide(up[c]) * g[c] - mean - wide(in[c]) * slope);
      out[c] = narrow(beside == nullptr ? through : wide(beside[c]) + through);
    });
  }
};

/// Sets d [count, context], the gradient of the probabilities, to that of the scores before they
/// were scaled.
struct causal_softmax_backward {
  static constexpr char const* name = "causal softmax backward";
  index count;
  index context;
  float scale;  ///< of the scores
  bf16 const* probabilities;
  bf16* d;

  [[nodiscard]] index rows() const { return count; }
  void touches(touching& t) const {
    t.reads(probabilities, count * context);
    t.changes(d, count * context);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const p = probabilities + row * context;
    auto* const x = d + row * context;
    float const factor = scale;
    index const seen = row % context + 1;
    float const mean = at.sum(seen, [=](index j) { return wide(p[j]) * wide(x[j]); });
    at.each(context, [=](index j) {
      x[j] = narrow(j < seen ? factor * wide(p[j]) * (wide(x[j]) - mean) : 0.0F);
    });
  }
};

/// Sets y to normal * gamma + beta, as F did; all [tokens, width].
struct scale_shift {
  static constexpr char const* name = "scale, shift";
  index tokens;
  index width;
  bf16 const* normal;
  float const* gamma;
  float const* beta;
  bf16* y;

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    t.reads(normal, tokens * width);
    t.reads(gamma, width);
    t.reads(beta, width);
    t.writes(y, tokens * width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const self = *this;
    at.each(width, [=](index c) {
      auto const i = row * self.width + c;
      self.y[i] = narrow(wide(self.normal[i]) * self.gamma[c] + self.beta[c]);
    });
  }
};

/// Cuts columns in runs of as many as there are lanes: a row of a kernel is a run of columns of a
/// row of a matrix.
struct column_tiles {
  index width;

  /// @return runs that a row is cut in
  [[nodiscard]] __host__ __device__ index a_row() const {
    return (width + lanes::count - 1) / lanes::count;
  }
  /// @return the row of the matrix
  [[nodiscard]] __host__ __device__ index row(index tile) const { return tile / a_row(); }
  /// Does something for every column of a run.
  template <class Do>
  __host__ __device__ void each(lanes const& at, index tile, Do column) const {
    index const first = tile % a_row() * lanes::count;
    index const rest = width - first;
    at.each(rest < lanes::count ? rest : lanes::count, [=](index c) { column(first + c); });
  }
};

/// Sums the columns of dy [tokens, width], or of its product with `factor`, over each run of
/// `run` tokens: sums [runs, width].
struct column_sums {
  static constexpr char const* name = "column sums";
  static constexpr index run = 64;  ///< own choice: some hundred blocks for a usual microbatch
  index tokens;
  index width;
  bf16 const* dy;
  bf16 const* factor;  ///< [tokens, width]; null: 1
  float* sums;

  /// @return how many runs there are
  [[nodiscard]] __host__ __device__ static index runs(index tokens) {
    return (tokens + run - 1) / run;
  }
  [[nodiscard]] index rows() const { return runs(tokens) * column_tiles{width}.a_row(); }
  void touches(touching& t) const {
    t.reads(dy, tokens * width);
    t.reads(factor, tokens * width);
    t.writes(sums, runs(tokens) * width);
  }
  __host__ __device__ void operator()(lanes const& at, index tile) const {
    auto const self = *this;
    column_tiles const tiles{width};
    index const of = tiles.row(tile);
    index const last = (of + 1) * run < tokens ? (of + 1) * run : tokens;
    tiles.each(at, tile, [=](index c) {
      float total = 0.0F;
      for (index t = of * run; t < last; ++t) {
        auto const i = t * self.width + c;
        total +=
            self.factor == nullptr ? wide(self.dy[i]) : wide(self.dy[i]) * wide(self.factor[i]);
      }
      self.sums[of * self.width + c] = total;
    });
  }
};

/// Adds the sums [runs, width] of all runs to a gradient [width].
struct add_sums {
  static constexpr char const* name = "add sums";
  index runs;
  index width;
  float const* sums;
  float* gradient;

  [[nodiscard]] index rows() const { return column_tiles{width}.a_row(); }
  void touches(touching& t) const {
    t.reads(sums, runs * width);
    t.changes(gradient, width);
  }
  __host__ __device__ void operator()(lanes const& at, index tile) const {
    auto const self = *this;
    column_tiles{width}.each(at, tile, [=](index c) {
      float total = 0.0F;
      for (index r = 0; r < self.runs; ++r) total += self.sums[r * self.width + c];
      self.gradient[c] += total;
    });
  }
};

/// Adds each row of dy [tokens, width] to the gradient [vocabulary, width] of its token's row, the
/// tokens in order.
struct embed_token_backward {
  static constexpr char const* name = "embed backward, tokens";
  sequence_starts of;
  index tokens;
  index width;
  bf16 const* dy;
  float* gradient;

  [[nodiscard]] index rows() const { return vocabulary * column_tiles{width}.a_row(); }
  void touches(touching& t) const {
    of.touches(t, tokens);
    t.reads(dy, tokens * width);
    t.changes(gradient, vocabulary * width);
  }
  __host__ __device__ void operator()(lanes const& at, index tile) const {
    auto const& self = *this;
    column_tiles const tiles{width};
    index const byte = tiles.row(tile);
    tiles.each(at, tile, [&](index c) {
      float total = 0.0F;
      for (index b = 0; b * self.of.context < self.tokens; ++b) {
        auto const* const sequence = self.of.text + self.of.first[b];
        auto const* const up = self.dy + b * self.of.context * self.width + c;
        for (index t = 0; t < self.of.context; ++t)
          if (sequence[t] == byte) total += wide(up[t * self.width]);
      }
      self.gradient[byte * self.width + c] += total;
    });
  }
};

/// Adds each row of dy [tokens, width] to the gradient [context, width] of its position's row.
struct embed_position_backward {
  static constexpr char const* name = "embed backward, positions";
  index tokens;
  index width;
  index context;
  bf16 const* dy;
  float* gradient;

  [[nodiscard]] index rows() const { return context; }
  void touches(touching& t) const {
    t.reads(dy, tokens * width);
    t.changes(gradient, context * width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const self = *this;
    at.each(width, [=](index c) {
      float total = 0.0F;
      for (index t = row; t < self.tokens; t += self.context)
        total += wide(self.dy[t * self.width + c]);
      self.gradient[row * self.width + c] += total;
    });
  }
};

/// Rounds weights to the copies that products use.
struct round_weights {
  static constexpr char const* name = "round weights";
  static constexpr index tile = 4 * lanes::count;
  index count;
  float const* value;
  bf16* rounded;

  [[nodiscard]] index rows() const { return (count + tile - 1) / tile; }
  void touches(touching& t) const {
    t.reads(value, count);
    t.writes(rounded, count);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const self = *this;
    index const first = row * tile;
    index const rest = count - first;
    at.each(rest < tile ? rest : tile, [=](index offset) {
      self.rounded[first + offset] = narrow(self.value[first + offset]);
    });
  }
};

}  // namespace gpt::cuda
