// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of F do to one row, each a class whose members are the kernel's arguments.
// Arithmetic is fp32; what is kept is rounded to bf16 once. Bytes, operations and registers of each
// are in docs/train_gpt_cuda.md.
#pragma once

#include "lanes.hpp"
#include "shape.hpp"
#include "touching.hpp"
#include "train_gpt/random.hpp"

#include <cmath>
#include <cstdint>

namespace gpt::cuda {

/// Says which tokens a microbatch has. Those of all sequences at one position are neighbours: row t
/// of [tokens, width] is position t / sequences of sequence t mod sequences, so that the heads of
/// all sequences are a batch with one distance between them (attention.hpp).
struct sequences_of {
  std::uint8_t const* text;   ///< on the device
  index letters;              ///< of the text
  std::int64_t const* first;  ///< [sequences], on the device: where each starts in the text
  index sequences;
  index context;

  /// @return the byte at row t of the microbatch
  [[nodiscard]] __host__ __device__ std::uint8_t token(index t) const {
    return text[first[t % sequences] + t / sequences];
  }
  /// @return the byte that follows it
  [[nodiscard]] __host__ __device__ std::uint8_t target(index t) const {
    return text[first[t % sequences] + t / sequences + 1];
  }
  /// @return rows of the microbatch
  [[nodiscard]] __host__ __device__ index tokens() const { return sequences * context; }
  /// Notes what a microbatch reads.
  void touches(touching& t) const {
    t.reads(text, letters);
    t.reads(first, sequences);
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
    t.reads(which.counted, 1);
    t.writes(first, sequences);
  }
  __host__ __device__ void operator()(lanes const& at, index) const {
    auto const self = *this;
    auto const step = which.step + (which.counted == nullptr ? 0 : *which.counted);
    at.each(sequences, [=](index b) {
      self.first[b] = static_cast<std::int64_t>(
          random_start(self.seed, step, self.which.number, b, self.places));
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
    t.reads(token_table, vocabulary * width);
    t.reads(position_table, of.context * width);
    t.writes(y, of.tokens() * width);
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const token = token_table + of.token(row) * width;
    auto const* const position = position_table + row / of.sequences * width;
    auto* const out = y + row * width;
    at.each(width / 8, [=](index p) { store(out, p, load(token, p) + load(position, p)); });
  }
};

/// Normalises the rows of x and keeps what B and W need; all [tokens, width] but for `scale`.
struct norm {
  static constexpr char const* name = "norm";
  index tokens;
  index width;
  bf16 const* x;
  float const* gamma;  ///< [width]
  float const* beta;   ///< [width]
  bf16* normal;        ///< mean 0, variance 1
  bf16* normed;        ///< normal * gamma + beta
  float* scale;        ///< [tokens], what made the variance 1

  [[nodiscard]] index rows() const { return tokens; }
  void touches(touching& t) const {
    t.reads(x, tokens * width);
    t.reads(gamma, width);
    t.reads(beta, width);
    t.writes(normal, tokens * width);
    t.writes(normed, tokens * width);
    t.writes(scale, tokens);
  }
  // A row stays in the first cache from one loop to the next.
  __host__ __device__ void operator()(lanes const& at, index row) const {
    constexpr float epsilon = 1e-5F;
    auto const self = *this;
    auto const* const in = x + row * width;
    float const share = 1.0F / static_cast<float>(width);
    float const mean = share * at.sum(width / 8, [=](index p) { return sum(load(in, p)); });
    float const variance = share * at.sum(width / 8, [=](index p) {
      auto const v = load(in, p);
      auto const off = make_eight([&](int i) { return v.at[i] - mean; });
      return sum(off * off);
    });
    float const factor = 1.0F / sqrtf(variance + epsilon);
    at.each(width / 8, [=](index p) {
      auto const v = load(in, p);
      // Rounded first: W makes `normed` again from what was kept.
      auto const n = rounded(make_eight([&](int i) { return (v.at[i] - mean) * factor; }));
      store(self.normal + row * self.width, p, n);
      store(self.normed + row * self.width, p, n * load(self.gamma, p) + load(self.beta, p));
    });
    at.each(1, [=](index) { self.scale[row] = factor; });
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
  index count;
  index context;
  index block;  ///< keys of a block
  bf16* scores;

  [[nodiscard]] index rows() const { return count; }
  /// @return elements of a row that products make and read
  [[nodiscard]] __host__ __device__ static index used(index row, index context, index block) {
    index const end = (row % context / block + 1) * block;
    return end < context ? end : context;
  }
  void touches(touching& t) const {
    for (index row = 0; row < count; ++row)
      t.changes(scores + row * context, used(row, context, block));
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto* const x = scores + row * context;
    index const seen = row % context + 1;
    auto const all = at.fold(
        (seen + 7) / 8,
        softmax_state(),
        [=](index p) { return softmax_state::of(load(x, p), seen - 8 * p); },
        softmax_state::both);
    float const share = 1.0F / all.mass;
    at.each(used(row, context, block) / 8, [=](index p) {
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
    t.reads(logits, of.tokens() * vocabulary);
    t.reads(bias, vocabulary);
    t.writes(dlogits, of.tokens() * vocabulary);
    t.writes(losses, of.tokens());
  }
  __host__ __device__ void operator()(lanes const& at, index row) const {
    auto const* const x = logits + row * vocabulary;
    auto const* const b = bias;
    auto* const dx = dlogits + row * vocabulary;
    auto* const loss = losses + row;
    float const part = share;
    index const wanted = of.target(row);
    static_assert(vocabulary == 8 * lanes::count, "a lane holds a piece of the logits");
    per_lane<eight> biased;
    at.each(vocabulary / 8, [&](index p) { biased[p] = load(x, p) + load(b, p); });
    auto const all = at.fold(
        vocabulary / 8,
        softmax_state(),
        [&](index p) { return softmax_state::of(biased[p], 8); },
        softmax_state::both);
    at.each(vocabulary / 8, [&](index p) {
      auto const& v = biased[p];
      store(dx, p, make_eight([&](int i) {
              float const chance = expf(v.at[i] - all.top) / all.mass;
              return part * (chance - (8 * p + i == wanted ? 1.0F : 0.0F));
            }));
      for (int i = 0; i < 8; ++i)
        if (8 * p + i == wanted) *loss = logf(all.mass) - (v.at[i] - all.top);
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
    t.reads(losses, tokens);
    t.writes(mean, 1);
  }
  __host__ __device__ void operator()(lanes const& at, index) const {
    auto const* const x = losses;
    auto* const to = mean;
    float const total = at.sum(tokens / 8, [=](index p) { return sum(load(x, p)); });
    float const count = static_cast<float>(tokens);
    at.each(1, [=](index) { *to = total / count; });
  }
};

}  // namespace gpt::cuda
