// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of B do to one row.
#pragma once

#include "rows_forward.hpp"

namespace gpt::cuda {

/// Sets dx to the gradient through a norm, given that of what it gave, plus the gradient that came
/// past it; all [tokens, width].
struct norm_backward {
  static constexpr char const* name = "norm backward";
  index tokens;
  index width;
  bf16 const* dy;
  float const* gamma;  ///< [width]
  bf16 const* normal;
  float const* scale;    ///< [tokens]
  bf16 const* residual;  ///< null: nothing came past it
  bf16* dx;

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    t.reads(dy, tokens * width);
    t.reads(gamma, width);
    t.reads(normal, tokens * width);
    t.reads(scale, tokens);
    t.reads(residual, tokens * width);
    t.writes(dx, tokens * width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    struct sums {
      float up;     // of gamma * dy
      float slope;  // of gamma * dy * normal
    };
    auto const* const up = dy + row * width;
    auto const* const in = normal + row * width;
    auto const* const beside = residual == nullptr ? nullptr : residual + row * width;
    auto* const out = dx + row * width;
    auto const* const g = gamma;
    float const factor = scale[row];
    float const share = 1.0F / static_cast<float>(width);
    auto const scaled = [=](index p) { return load(up, p) * load(g, p); };
    auto const all = at.fold(
        width / 8,
        sums{},
        [=](index p) {
          auto const u = scaled(p);
          return sums{sum(u), sum(u * load(in, p))};
        },
        [](sums a, sums b) {
          return sums{a.up + b.up, a.slope + b.slope};
        });
    at.each(width / 8, [=](index p) {
      auto const u = scaled(p);
      auto const n = load(in, p);
      auto const through = make_eight(
          [&](int i) { return factor * (u.at[i] - share * all.up - n.at[i] * share * all.slope); });
      if (beside == nullptr) return store(out, p, through);
      store(out, p, load(beside, p) + through);
    });
  }
};

/// Sets each row of d [count, context], the gradient of the probabilities, to that of the scores
/// before they were scaled; blocks of keys as for causal_softmax.
struct causal_softmax_backward {
  static constexpr char const* name = "causal softmax backward";
  index count;
  index context;
  index block;  ///< keys of a block
  float scale;  ///< of the scores
  bf16 const* probabilities;
  bf16* d;

  [[nodiscard]] index rows() const { return count; }
  void touches(touching& t) const {
    for (index row = 0; row < count; ++row) {
      auto const used = causal_softmax::used(row, context, block);
      t.reads(probabilities + row * context, used);
      t.changes(d + row * context, used);
    }
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const p = probabilities + row * context;
    auto* const x = d + row * context;
    float const factor = scale;
    index const pieces = causal_softmax::used(row, context, block) / 8;
    // Where nothing may be seen the probability is 0, and so is the gradient.
    float const mean = at.sum(pieces, [=](index c) { return sum(load(p, c) * load(x, c)); });
    at.each(pieces, [=](index c) {
      auto const a = load(p, c);
      auto const b = load(x, c);
      store(x, c, make_eight([&](int i) { return factor * a.at[i] * (b.at[i] - mean); }));
    });
  }
};

}  // namespace gpt::cuda
