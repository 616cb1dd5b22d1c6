// SPDX-License-Identifier: Apache-2.0
//
// A pre-norm transformer block, x + attention(norm(x)) and then x + mlp(norm(x)), in three passes.
// Names, sizes and first values of its parameters are those of train_gpt's block.
#pragma once

#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace gpt::cuda {

/// Counts bytes that a part keeps of a microbatch, and that its passes need as scratch.
struct footprint {
  std::size_t until_b = 0;    ///< from F to the end of B
  std::size_t until_w = 0;    ///< from F to the end of W
  std::size_t gradients = 0;  ///< from B to the end of W
  std::size_t scratch = 0;    ///< during a pass
};

/// Cuts what a microbatch keeps, by who needs it last.
struct kept {
  pieces until_b;
  pieces until_w;
  pieces gradients;
};

/// @return what a part takes whose microbatch keeps a `Saved`
template <class Saved>
[[nodiscard]] footprint footprint_of(shape const& s, std::size_t scratch) {
  kept counted;
  Saved const layout(s, counted);
  static_cast<void>(layout);
  return {counted.until_b.used(), counted.until_w.used(), counted.gradients.used(), scratch};
}

/// Is a transformer block [tokens, width] -> [tokens, width].
class block {
 public:
  /// Points at what a microbatch keeps in a block; T tokens, C = width.
  struct saved {
    float* scale_1;       ///< [T], until B
    float* scale_2;       ///< [T], until B
    bf16* qkv;            ///< [T, 3C] as attention.hpp says, until B
    bf16* probabilities;  ///< [sequences, heads, context, context], until B
    bf16* hidden;         ///< [T, 4C] into GELU, until B
    bf16* normal_1;       ///< [T, C], until W
    bf16* mixed;          ///< [T, C] out of attention, until W
    bf16* normal_2;       ///< [T, C], until W
    bf16* active;         ///< [T, 4C] out of GELU, until W
    bf16* dqkv;           ///< [T, 3C], from B until W
    bf16* dnorm_1;        ///< [T, C], from B until W
    bf16* dnorm_2;        ///< [T, C], from B until W
    bf16* dmiddle;        ///< [T, C], from B until W: gradient between attention and MLP
    bf16* dhidden;        ///< [T, 4C], from B until W

    /// Cuts it out, always in the same order.
    saved(shape const& s, kept& from)
        : scale_1(from.until_b.take<float>(s.tokens())),
          scale_2(from.until_b.take<float>(s.tokens())),
          qkv(from.until_b.take<bf16>(3 * s.row_elements())),
          probabilities(from.until_b.take<bf16>(s.score_rows() * s.context)),
          hidden(from.until_b.take<bf16>(s.tokens() * s.hidden())),
          normal_1(from.until_w.take<bf16>(s.row_elements())),
          mixed(from.until_w.take<bf16>(s.row_elements())),
          normal_2(from.until_w.take<bf16>(s.row_elements())),
          active(from.until_w.take<bf16>(s.tokens() * s.hidden())),
          dqkv(from.gradients.take<bf16>(3 * s.row_elements())),
          dnorm_1(from.gradients.take<bf16>(s.row_elements())),
          dnorm_2(from.gradients.take<bf16>(s.row_elements())),
          dmiddle(from.gradients.take<bf16>(s.row_elements())),
          dhidden(from.gradients.take<bf16>(s.tokens() * s.hidden())) {}
  };

  /// Adds its parameters to a list; `part` is its place in the model.
  block(shape const& s, index part, weights& to) : s_(s) {
    auto const width = s.width;
    auto const deviation = 1.0F / std::sqrt(static_cast<float>(width));
    // Branches are added to the stream 2 * layers times; this keeps the sum's size.
    auto const branch = deviation / std::sqrt(2.0F * static_cast<float>(s.layers));
    auto const make_norm = [&](char const* gamma, char const* beta) {
      auto const first = to.add(part, gamma, width, 1.0F, 0.0F);
      return affine{width, first, to.add(part, beta, width, 0.0F, 0.0F)};
    };
    auto const make_linear =
        [&](char const* weight, char const* bias, index in, index out, float d) {
          auto const first = to.add(part, weight, out * in, 0.0F, d);
          return linear{in, out, first, to.add(part, bias, out, 0.0F, 0.0F)};
        };
    norm_1_ = make_norm("norm 1 gamma", "norm 1 beta");
    qkv_ = make_linear("qkv weight", "qkv bias", width, 3 * width, deviation);
    out_ = make_linear("attention out weight", "attention out bias", width, width, branch);
    norm_2_ = make_norm("norm 2 gamma", "norm 2 beta");
    up_ = make_linear("mlp up weight", "mlp up bias", width, s.hidden(), deviation);
    down_ = make_linear("mlp down weight", "mlp down bias", s.hidden(), width, branch / 2.0F);
  }

  /// @return what a microbatch takes in a block of this size
  [[nodiscard]] static footprint takes(shape const& s) {
    scratch_space const counted(s, pieces());
    return footprint_of<saved>(s, counted.bytes);
  }

  /// Enqueues y [T, C] from x [T, C].
  void forward(
      compute const& use, saved const& k, bf16 const* x, std::byte* scratch, bf16* y) const {
    auto const tokens = s_.tokens();
    scratch_space const room(s_, pieces(scratch));
    norm_1_.forward(use, tokens, x, k.normal_1, k.scale_1, room.normed);
    qkv_.forward(use, tokens, room.normed, nullptr, k.qkv);
    attention_forward(use, s_, k.qkv, k.probabilities, k.mixed);
    out_.forward(use, tokens, k.mixed, x, y);
    norm_2_.forward(use, tokens, y, k.normal_2, k.scale_2, room.normed);
    up_.forward_gelu(use, tokens, room.normed, k.hidden, k.active);
    down_.forward(use, tokens, k.active, y, y);
  }

  /// Enqueues dx [T, C] from dy [T, C].
  void backward_input(
      compute const& use, saved const& k, bf16 const* dy, std::byte* scratch, bf16* dx) const {
    auto const tokens = s_.tokens();
    scratch_space const room(s_, pieces(scratch));
    down_.backward_input(use, tokens, dy, k.dhidden, k.hidden);
    up_.backward_input(use, tokens, k.dhidden, k.dnorm_2);
    norm_2_.backward_input(use, tokens, k.dnorm_2, k.normal_2, k.scale_2, dy, k.dmiddle);
    out_.backward_input(use, tokens, k.dmiddle, room.dmixed);
    attention_backward(use, s_, room.dmixed, k.qkv, k.probabilities, room.dscores, k.dqkv);
    qkv_.backward_input(use, tokens, k.dqkv, k.dnorm_1);
    norm_1_.backward_input(use, tokens, k.dnorm_1, k.normal_1, k.scale_1, k.dmiddle, dx);
  }

  /// Enqueues what adds to the gradients of the parameters.
  void backward_weight(
      compute const& use, saved const& k, bf16 const* dy, std::byte* scratch) const {
    auto const tokens = s_.tokens();
    scratch_space const room(s_, pieces(scratch));
    gradient_sums sums(tokens, room.sums);
    down_.backward_weight(use, tokens, k.active, dy, sums);
    norm_2_.backward_weight(use, tokens, k.dnorm_2, k.normal_2, room.normed, sums);
    up_.backward_weight(use, tokens, room.normed, k.dhidden, sums);
    out_.backward_weight(use, tokens, k.mixed, k.dmiddle, sums);
    norm_1_.backward_weight(use, tokens, k.dnorm_1, k.normal_1, room.normed, sums);
    qkv_.backward_weight(use, tokens, room.normed, k.dqkv, sums);
    sums.add(use.on);
  }

 private:
  // What passes use: F and W `normed`, W `sums`, B the rest. Each pass has all the room from its
  // start.
  struct scratch_space {
    scratch_space(shape const& s, pieces const& room) {
      pieces weight = room;
      normed = weight.take<bf16>(s.row_elements());
      // Four biases, two gammas, two betas.
      auto const widths = 3 * s.width + s.width + s.hidden() + s.width + 4 * s.width;
      auto const of_sums = gradient_sums::bytes(s.tokens(), widths);
      sums = weight.take<std::byte>(static_cast<index>(of_sums));
      pieces mixing = room;
      dmixed = mixing.take<bf16>(s.row_elements());
      dscores = mixing.take<bf16>(s.score_rows() * s.context);
      bytes = std::max(weight.used(), mixing.used());
    }

    bf16* normed;
    std::byte* sums;
    bf16* dmixed;
    bf16* dscores;
    std::size_t bytes;
  };

  shape s_;
  affine norm_1_{}, norm_2_{};
  linear qkv_{}, out_{}, up_{}, down_{};
};

}  // namespace gpt::cuda
