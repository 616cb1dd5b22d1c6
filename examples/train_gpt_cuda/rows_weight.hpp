// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of W and after an optimizer step do to one row. What W adds up is fp32, and is
// added in an order that depends on nothing but the sizes: no atomics.
#pragma once

#include "rows_forward.hpp"

namespace gpt::cuda {

/// Cuts the columns of a matrix in tiles as wide as all lanes reach: a row of a kernel is one tile
/// of one row of the matrix.
struct column_tiles {
  index width;

  /// @return tiles that a row is cut in
  [[nodiscard]] __host__ __device__ index a_row() const {
    return (width / 8 + lanes::count - 1) / lanes::count;
  }
  /// @return the row of the matrix
  [[nodiscard]] __host__ __device__ index row(index tile) const { return tile / a_row(); }
  /// Does something for the first column of every piece of a tile.
  template <class Do>
  __host__ __device__ void each(lanes const& at, index tile, Do column) const {
    index const first = tile % a_row() * lanes::count;
    index const rest = width / 8 - first;
    at.each(rest < lanes::count ? rest : lanes::count, [=](index p) { column(8 * (first + p)); });
  }
};

/// Cuts tokens in runs: over each of them a kernel of W adds up, and add_sums adds the sums.
struct token_runs {
  static constexpr index run = 16;  ///< own choice: enough warps for all multiprocessors
  index tokens;

  /// @return how many there are
  [[nodiscard]] __host__ __device__ index count() const { return (tokens + run - 1) / run; }
  /// @return the token after the last of a run
  [[nodiscard]] __host__ __device__ index last(index of) const {
    return (of + 1) * run < tokens ? (of + 1) * run : tokens;
  }
};

/// Sums the columns of dy [tokens, width] over runs of tokens: sums [runs, width].
struct column_sums {
  static constexpr char const* name = "column sums";
  index tokens;
  index width;
  bf16 const* dy;
  float* sums;

  [[nodiscard]] index rows() const {
    return token_runs{tokens}.count() * column_tiles{width}.a_row();
  }
  void touches(touching& t) const {
    t.reads(dy, tokens * width);
    t.writes(sums, token_runs{tokens}.count() * width);
  }
  __host__ __device__ void operator()(lanes const& at, index tile) const {
    auto const self = *this;
    column_tiles const tiles{width};
    index const of = tiles.row(tile);
    tiles.each(at, tile, [=](index c) {
      eight total{};
      for (index t = of * token_runs::run; t < token_runs{self.tokens}.last(of); ++t)
        total += load(self.dy + t * self.width + c);
      store(self.sums + of * self.width + c, total);
    });
  }
};

/// Does what W does around a norm, in one read: sets y to normal * gamma + beta, as F did, and sums
/// dy * normal and dy over runs of tokens. Matrices are [tokens, width], sums [runs, width].
struct norm_weights {
  static constexpr char const* name = "norm weights";
  index tokens;
  index width;
  bf16 const* dy;
  bf16 const* normal;
  float const* gamma;
  float const* beta;
  bf16* y;
  float* gamma_sums;
  float* beta_sums;

  [[nodiscard]] index rows() const {
    return token_runs{tokens}.count() * column_tiles{width}.a_row();
  }
  void touches(touching& t) const {
    t.reads(dy, tokens * width);
    t.reads(normal, tokens * width);
    t.reads(gamma, width);
    t.reads(beta, width);
    t.writes(y, tokens * width);
    t.writes(gamma_sums, token_runs{tokens}.count() * width);
    t.writes(beta_sums, token_runs{tokens}.count() * width);
  }
  __host__ __device__ void operator()(lanes const& at, index tile) const {
    auto const self = *this;
    column_tiles const tiles{width};
    index const of = tiles.row(tile);
    tiles.each(at, tile, [=](index c) {
      auto const g = load(self.gamma + c);
      auto const b = load(self.beta + c);
      eight scales{};
      eight shifts{};
      for (index t = of * token_runs::run; t < token_runs{self.tokens}.last(of); ++t) {
        auto const at_token = t * self.width + c;
        auto const up = load(self.dy + at_token);
        auto const n = load(self.normal + at_token);
        scales += up * n;
        shifts += up;
        store(self.y + at_token, n * g + b);
      }
      store(self.gamma_sums + of * self.width + c, scales);
      store(self.beta_sums + of * self.width + c, shifts);
    });
  }
};

/// Adds sums over runs of tokens to gradients, several at once.
struct add_sums {
  static constexpr char const* name = "add sums";
  static constexpr int most = 8;
  struct item {
    float const* sums;  ///< [runs, width]
    index runs;
    index width;
    float* gradient;  ///< [width]
  };
  item items[most];
  int count;

  [[nodiscard]] index rows() const {
    index all = 0;
    for (int i = 0; i < count; ++i) all += items[i].width / 8;
    return all;
  }
  void touches(touching& t) const {
    for (int i = 0; i < count; ++i) {
      t.reads(items[i].sums, items[i].runs * items[i].width);
      t.changes(items[i].gradient, items[i].width);
    }
  }
  // A row is eight columns, and a piece of it a run.
  __host__ __device__ void operator()(lanes const& at, index row) const {
    int which = 0;
    for (; row >= items[which].width / 8; ++which) row -= items[which].width / 8;
    auto const of = items[which];
    index const column = 8 * row;
    auto const total = at.fold(
        of.runs,
        eight{},
        [=](index r) { return load(of.sums + r * of.width + column); },
        [](eight const& a, eight const& b) { return a + b; });
    at.each(1, [=](index) { store(of.gradient + column, load(of.gradient + column) + total); });
  }
};

/// Adds each row of dy [tokens, width] to the gradient [vocabulary, width] of its token's row, one
/// sequence after another.
struct embed_token_backward {
  static constexpr char const* name = "embed backward, tokens";
  sequences_of of;
  index width;
  bf16 const* dy;
  float* gradient;

  [[nodiscard]] index rows() const { return vocabulary * column_tiles{width}.a_row(); }
  void touches(touching& t) const {
    of.touches(t);
    t.reads(dy, of.tokens() * width);
    t.changes(gradient, vocabulary * width);
  }
  __host__ __device__ void operator()(lanes const& at, index tile) const {
    auto const self = *this;
    column_tiles const tiles{width};
    index const byte = tiles.row(tile);
    tiles.each(at, tile, [=](index c) {
      auto total = load(self.gradient + byte * self.width + c);
      for (index b = 0; b < self.of.sequences; ++b) {
        auto const* const letters = self.of.text + self.of.first[b];
        for (index t = 0; t < self.of.context; ++t) {
          if (letters[t] != byte) continue;
          total += load(self.dy + (t * self.of.sequences + b) * self.width + c);
        }
      }
      store(self.gradient + byte * self.width + c, total);
    });
  }
};

/// Adds each row of dy [tokens, width] to the gradient [context, width] of its position's row.
struct embed_position_backward {
  static constexpr char const* name = "embed backward, positions";
  index sequences;
  index width;
  index context;
  bf16 const* dy;
  float* gradient;

  [[nodiscard]] index rows() const { return context; }
  void touches(touching& t) const {
    t.reads(dy, sequences * context * width);
    t.changes(gradient, context * width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const self = *this;
    at.each(width / 8, [=](index p) {
      auto* const to = self.gradient + row * self.width;
      auto total = load(to, p);
      for (index b = 0; b < self.sequences; ++b)
        total += load(self.dy + (row * self.sequences + b) * self.width, p);
      store(to, p, total);
    });
  }
};

/// Rounds weights, a multiple of eight, to the copies that products use.
struct round_weights {
  static constexpr char const* name = "round weights";
  static constexpr index tile = 4 * lanes::count;  ///< pieces of a row
  index count;
  float const* value;
  bf16* rounded;

  [[nodiscard]] index rows() const { return (count / 8 + tile - 1) / tile; }
  void touches(touching& t) const {
    t.reads(value, count);
    t.writes(rounded, count);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const self = *this;
    index const first = row * tile;
    index const rest = count / 8 - first;
    at.each(rest < tile ? rest : tile, [=](index p) {
      store(self.rounded, first + p, load(self.value, first + p));
    });
  }
};

}  // namespace gpt::cuda
