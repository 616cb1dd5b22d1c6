// SPDX-License-Identifier: Apache-2.0
//
// The kernels: row functions of F, of B and of W, which a warp runs for each row. Code that is not
// compiled by nvcc enqueues them by `run(stream, kernel)`.
#pragma once

#include "lanes.hpp"
#include "shape.hpp"
#include "train_gpt/random.hpp"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>

namespace gpt::cuda {

/// Says which tokens a microbatch has. Those of all sequences at one position are neighbours: row t
/// of [tokens, width] is position t / sequences of sequence t mod sequences, so that the heads of
/// all sequences are a batch with one distance between them (layers.hpp).
struct sequences_of {
  std::uint8_t const* text;   ///< on the device
  index letters;              ///< of the text
  std::int64_t const* first;  ///< [sequences], on the device: where each starts in the text
  index sequences, context;

  /// @return the byte at row t of the microbatch; with `ahead`, so many after it
  [[nodiscard]] __host__ __device__ std::uint8_t token(index t, index ahead = 0) const {
    return text[first[t % sequences] + t / sequences + ahead];
  }
  /// @return rows of the microbatch
  [[nodiscard]] __host__ __device__ index tokens() const { return sequences * context; }
  /// Notes what a microbatch reads.
  void touches(touching& t) const {
    t(letters, text);
    t(sequences, first);
  }
};

/// Says which microbatch of a training it is.
struct microbatch_number {
  int number;                             ///< in its step
  std::int64_t step;                      ///< of the training
  std::int64_t const* counted = nullptr;  ///< on the device: steps to add; null: none
};

/// Writes where the sequences of a microbatch start, as train_gpt/text.hpp has it. Where the host
/// counts the steps, it is the one kernel whose arguments differ from step to step, so that others
/// can be replayed.
struct place_sequences {
  static constexpr char const* name = "place sequences";
  std::uint64_t seed;
  microbatch_number which;
  std::uint64_t places;  ///< where a sequence may start
  index sequences;
  std::int64_t* first;

  [[nodiscard]] static constexpr index rows() { return 1; }
  void touches(touching& t) const {
    t(1, which.counted);
    t(sequences, first);
  }
  __host__ __device__ void operator()(lanes const& at, index) const {
    auto const step = which.step + (which.counted == nullptr ? 0 : *which.counted);
    at.each(sequences, [&](index b) {
      first[b] = static_cast<std::int64_t>(random_start(seed, step, which.number, b, places));
    });
  }
};

/// Sets y [tokens, width] to token row + position row.
struct embed {
  static constexpr char const* name = "embed";
  sequences_of of;
  index width;
  float const* token_table;     ///< [vocabulary, width]
  float const* position_table;  ///< [context, width]
  bf16* y;

  [[nodiscard]] index rows() const { return of.tokens(); }
  void touches(touching& t) const {
    of.touches(t);
    t(vocabulary * width, token_table);
    t(of.context * width, position_table);
    t(of.tokens() * width, y);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const token = token_table + of.token(row) * width;
    auto const* const position = position_table + row / of.sequences * width;
    auto* const out = y + row * width;
    at.each(width / 8, [&](index p) { store(out, p, load(token, p) + load(position, p)); });
  }
};

/// Normalises the rows of x and keeps what B and W need; all [tokens, width] but for `scale`.
struct norm {
  static constexpr char const* name = "norm";
  index tokens, width;
  bf16 const* x;
  float const* gamma;  ///< [width]
  float const* beta;   ///< [width]
  bf16* normal;        ///< mean 0, variance 1
  float* scale;        ///< [tokens], what made the variance 1
  bf16* normed;        ///< normal * gamma + beta

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    t(tokens * width, x, normal, normed);
    t(width, gamma, beta);
    t(tokens, scale);
  }
  // A row stays in the first cache from one loop to the next.
  __host__ __device__ void operator()(lanes const& at, index row) const {
    constexpr float epsilon = 1e-5F;
    index const first = row * width;
    auto const* const in = x + first;
    float const share = 1.0F / static_cast<float>(width);
    float const mean = share * at.sum(width / 8, [&](index p) { return sum(load(in, p)); });
    float const variance = share * at.sum(width / 8, [&](index p) {
      auto const v = load(in, p);
      auto const off = make_eight([&](int i) { return v.at[i] - mean; });
      return sum(off * off);
    });
    float const factor = 1.0F / sqrtf(variance + epsilon);
    at.each(width / 8, [&](index p) {
      auto const v = load(in, p);
      // Rounded first: W makes `normed` again from what was kept.
      auto const n = rounded(make_eight([&](int i) { return (v.at[i] - mean) * factor; }));
      store(normal + first, p, n);
      store(normed + first, p, n * load(gamma, p) + load(beta, p));
    });
    at.each(1, [&](index) { scale[row] = factor; });
  }
};

/// Holds the largest of some numbers, and the sum of e^(x - top) over them.
struct softmax_state {
  float top = -INFINITY;
  float mass = 0.0F;

  /// @return those of the numbers of both
  [[nodiscard]] __host__ __device__ static softmax_state both(softmax_state a, softmax_state b) {
    if (a.mass == 0.0F) return b;
    if (b.mass == 0.0F) return a;
    float const top = a.top < b.top ? b.top : a.top;
    return {top, a.mass * expf(a.top - top) + b.mass * expf(b.top - top)};
  }
  /// @return those of the first `count` of eight numbers
  [[nodiscard]] __host__ __device__ static softmax_state of(eight const& x, index count) {
    softmax_state all;
    for (int i = 0; i < 8; ++i)
      if (i < count && all.top < x.at[i]) all.top = x.at[i];
    all.mass = sum(make_eight([&](int i) { return i < count ? expf(x.at[i] - all.top) : 0.0F; }));
    return all;
  }
};

/// Sets each row of scores [count, context] to the softmax of what it may see, its first
/// row mod context + 1 elements, and to 0 what follows in its block of keys. Blocks after that are
/// no product's factor.
struct causal_softmax {
  static constexpr char const* name = "causal softmax";
  index count, context, block;  ///< the last: keys of a block
  bf16* scores;

  [[nodiscard]] index rows() const { return count; }
  /// @return elements of a row that products make and read
  [[nodiscard]] __host__ __device__ static index used(index row, index context, index block) {
    index const end = (row % context / block + 1) * block;
    return end < context ? end : context;
  }
  void touches(touching& t) const {
    for (index row = 0; row < count; ++row)
      t.changes(used(row, context, block), scores + row * context);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto* const x = scores + row * context;
    index const seen = row % context + 1;
    auto const all = at.fold(
        (seen + 7) / 8,
        softmax_state(),
        [&](index p) { return softmax_state::of(load(x, p), seen - 8 * p); },
        softmax_state::both);
    float const share = 1.0F / all.mass;
    at.each(used(row, context, block) / 8, [&](index p) {
      auto const v = load(x, p);
      store(x, p, make_eight([&](int i) {
              return 8 * p + i < seen ? expf(v.at[i] - all.top) * share : 0.0F;
            }));
    });
  }
};

/// Makes the loss of every token, and the gradient of its logits, which are read once.
struct cross_entropy {
  static constexpr char const* name = "cross entropy";
  sequences_of of;
  float share;          ///< of a token's loss in the loss that gradients are of
  float const* logits;  ///< [tokens, vocabulary], without the bias
  float const* bias;    ///< [vocabulary]
  bf16* dlogits;        ///< [tokens, vocabulary]
  float* losses;        ///< [tokens], in nats

  [[nodiscard]] index rows() const { return of.tokens(); }
  void touches(touching& t) const {
    of.touches(t);
    t(of.tokens() * vocabulary, logits, dlogits);
    t(vocabulary, bias);
    t(of.tokens(), losses);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const x = logits + row * vocabulary;
    auto* const dx = dlogits + row * vocabulary;
    index const wanted = of.token(row, 1);
    static_assert(vocabulary == 8 * lanes::count, "a lane holds a piece of the logits");
    per_lane<eight> biased;
    at.each(vocabulary / 8, [&](index p) { biased[p] = load(x, p) + load(bias, p); });
    auto const all = at.fold(
        vocabulary / 8,
        softmax_state(),
        [&](index p) { return softmax_state::of(biased[p], 8); },
        softmax_state::both);
    at.each(vocabulary / 8, [&](index p) {
      auto const& v = biased[p];
      store(dx, p, make_eight([&](int i) {
              float const chance = expf(v.at[i] - all.top) / all.mass;
              return share * (chance - (8 * p + i == wanted ? 1.0F : 0.0F));
            }));
      for (int i = 0; i < 8; ++i)
        if (8 * p + i == wanted) losses[row] = logf(all.mass) - (v.at[i] - all.top);
    });
  }
};

/// Sets `mean` to the mean of some losses, a multiple of eight.
struct mean_loss {
  static constexpr char const* name = "mean loss";
  index tokens;
  float const* losses;
  float* mean;

  [[nodiscard]] static constexpr index rows() { return 1; }
  void touches(touching& t) const {
    t(tokens, losses);
    t(1, mean);
  }
  __host__ __device__ void operator()(lanes const& at, index) const {
    float const total = at.sum(tokens / 8, [&](index p) { return sum(load(losses, p)); });
    at.each(1, [&](index) { *mean = total / static_cast<float>(tokens); });
  }
};

/// Sets dx to the gradient through a norm, given that of what it gave, plus the gradient that came
/// past it; all [tokens, width].
struct norm_backward {
  static constexpr char const* name = "norm backward";
  index tokens, width;
  bf16 const* dy;
  float const* gamma;  ///< [width]
  bf16 const* normal;
  float const* scale;    ///< [tokens]
  bf16 const* residual;  ///< null: nothing came past it
  bf16* dx;

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    t(tokens * width, dy, normal, residual, dx);
    t(width, gamma);
    t(tokens, scale);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    struct sums {
      float up;     // of gamma * dy
      float slope;  // of gamma * dy * normal
    };
    index const first = row * width;
    auto const* const in = normal + first;
    float const factor = scale[row];
    float const share = 1.0F / static_cast<float>(width);
    auto const scaled = [&](index p) { return load(dy + first, p) * load(gamma, p); };
    auto const all = at.fold(
        width / 8,
        sums{},
        [&](index p) {
          auto const u = scaled(p);
          return sums{sum(u), sum(u * load(in, p))};
        },
        [](sums a, sums b) {
          return sums{a.up + b.up, a.slope + b.slope};
        });
    at.each(width / 8, [&](index p) {
      auto const u = scaled(p);
      auto const n = load(in, p);
      auto const through = make_eight(
          [&](int i) { return factor * (u.at[i] - share * all.up - n.at[i] * share * all.slope); });
      if (residual == nullptr) return store(dx + first, p, through);
      store(dx + first, p, load(residual + first, p) + through);
    });
  }
};

/// Sets each row of d [count, context], the gradient of the probabilities, to that of the scores
/// before they were scaled; blocks of keys as for causal_softmax.
struct causal_softmax_backward {
  static constexpr char const* name = "causal softmax backward";
  index count, context, block;  ///< the last: keys of a block
  float scale;                  ///< of the scores
  bf16 const* probabilities;
  bf16* d;

  [[nodiscard]] index rows() const { return count; }
  void touches(touching& t) const {
    for (index row = 0; row < count; ++row) {
      auto const used = causal_softmax::used(row, context, block);
      t(used, probabilities + row * context);
      t.changes(used, d + row * context);
    }
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const p = probabilities + row * context;
    auto* const x = d + row * context;
    index const pieces = causal_softmax::used(row, context, block) / 8;
    // Where nothing may be seen the probability is 0, and so is the gradient.
    float const mean = at.sum(pieces, [&](index c) { return sum(load(p, c) * load(x, c)); });
    at.each(pieces, [&](index c) {
      auto const a = load(p, c);
      auto const b = load(x, c);
      store(x, c, make_eight([&](int i) { return scale * a.at[i] * (b.at[i] - mean); }));
    });
  }
};

/// Cuts the columns of a matrix in tiles as wide as all lanes reach: a row of a kernel is one tile
/// of one row of the matrix.
struct column_tiles {
  index width;

  /// @return tiles that a row is cut in
  [[nodiscard]] __host__ __device__ index a_row() const {
    return (width / 8 + lanes::count - 1) / lanes::count;
  }
  /// Does something for the row of the matrix and every piece of it that is in a tile.
  template <class Do>
  __host__ __device__ void each(lanes const& at, index tile, Do piece) const {
    index const row = tile / a_row();
    index const first = tile % a_row() * lanes::count;
    index const rest = width / 8 - first;
    at.each(rest < lanes::count ? rest : lanes::count, [&](index p) { piece(row, first + p); });
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
  index tokens, width;
  bf16 const* dy;
  float* sums;

  [[nodiscard]] index rows() const {
    return token_runs{tokens}.count() * column_tiles{width}.a_row();
  }
  void touches(touching& t) const {
    t(tokens * width, dy);
    t(token_runs{tokens}.count() * width, sums);
  }
  __host__ __device__ void operator()(lanes const& at, index tile) const {
    column_tiles{width}.each(at, tile, [&](index of, index p) {
      eight total{};
      for (index t = of * token_runs::run; t < token_runs{tokens}.last(of); ++t)
        total += load(dy + t * width, p);
      store(sums + of * width, p, total);
    });
  }
};

/// Does what W does around a norm, in one read: sets y to normal * gamma + beta, as F did, and sums
/// dy * normal and dy over runs of tokens. Matrices are [tokens, width], sums [runs, width].
struct norm_weights {
  static constexpr char const* name = "norm weights";
  index tokens, width;
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
    t(tokens * width, dy, normal, y);
    t(width, gamma, beta);
    t(token_runs{tokens}.count() * width, gamma_sums, beta_sums);
  }
  __host__ __device__ void operator()(lanes const& at, index tile) const {
    column_tiles{width}.each(at, tile, [&](index of, index p) {
      auto const g = load(gamma, p);
      auto const b = load(beta, p);
      eight scales{};
      eight shifts{};
      for (index t = of * token_runs::run; t < token_runs{tokens}.last(of); ++t) {
        auto const up = load(dy + t * width, p);
        auto const n = load(normal + t * width, p);
        scales += up * n;
        shifts += up;
        store(y + t * width, p, n * g + b);
      }
      store(gamma_sums + of * width, p, scales);
      store(beta_sums + of * width, p, shifts);
    });
  }
};

/// Adds sums over runs of tokens to gradients, several at once.
struct add_sums {
  static constexpr char const* name = "add sums";
  static constexpr int most = 8;
  struct item {
    float const* sums;  ///< [runs, width]
    index runs, width;
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
      t(items[i].runs * items[i].width, items[i].sums);
      t.changes(items[i].width, items[i].gradient);
    }
  }
  // A row is eight columns, and a piece of it a run.
  __host__ __device__ void operator()(lanes const& at, index row) const {
    int which = 0;
    for (; row >= items[which].width / 8; ++which) row -= items[which].width / 8;
    auto const of = items[which];
    auto const total = at.fold(
        of.runs,
        eight{},
        [&](index r) { return load(of.sums + r * of.width, row); },
        [](eight const& a, eight const& b) { return a + b; });
    at.each(1, [&](index) { store(of.gradient, row, load(of.gradient, row) + total); });
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
    t(of.tokens() * width, dy);
    t.changes(vocabulary * width, gradient);
  }
  __host__ __device__ void operator()(lanes const& at, index tile) const {
    column_tiles{width}.each(at, tile, [&](index byte, index p) {
      auto total = load(gradient + byte * width, p);
      for (index b = 0; b < of.sequences; ++b) {
        auto const* const letters = of.text + of.first[b];
        for (index t = 0; t < of.context; ++t) {
          if (letters[t] != byte) continue;
          total += load(dy + (t * of.sequences + b) * width, p);
        }
      }
      store(gradient + byte * width, p, total);
    });
  }
};

/// Adds each row of dy [tokens, width] to the gradient [context, width] of its position's row.
struct embed_position_backward {
  static constexpr char const* name = "embed backward, positions";
  index sequences, width, context;
  bf16 const* dy;
  float* gradient;

  [[nodiscard]] index rows() const { return context; }
  void touches(touching& t) const {
    t(sequences * context * width, dy);
    t.changes(context * width, gradient);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    at.each(width / 8, [&](index p) {
      auto* const to = gradient + row * width;
      auto total = load(to, p);
      for (index b = 0; b < sequences; ++b) total += load(dy + (row * sequences + b) * width, p);
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
  void touches(touching& t) const { t(count, value, rounded); }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    index const first = row * tile;
    index const rest = count / 8 - first;
    at.each(rest < tile ? rest : tile, [&](index p) {
      store(rounded, first + p, load(value, first + p));
    });
  }
};

/// Enqueues a kernel, which kernels.cpp has to list, or it does not link.
/// @throws zbpp::cuda::cuda_error
template <class Rows>
void run(cudaStream_t on, Rows const& what);

}  // namespace gpt::cuda
