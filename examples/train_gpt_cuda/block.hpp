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
    bf16* qkv;            ///< [T, 3C], until B
    bf16* probabilities;  ///< [sequences, heads, context, context], until B
    bf16* normal_1;       ///< [T, C], until W
    bf16* mixed;          ///< [T, C] out of attention, until W
    bf16* normal_2;       ///< [T, C], until W
    bf16* hidden;         ///< [T, 4C] into GELU, until W; B makes it its gradient
    bf16* active;         ///< [T, 4C] out of GELU, until W
    bf16* dqkv;           ///< [T, 3C], from B until W
    bf16* dnorm_1;        ///< [T, C], from B until W
    bf16* dnorm_2;        ///< [T, C], from B until W
    bf16* dmiddle;        ///< [T, C], from B until W: gradient between attention and MLP

    /// Cuts it out, always in the same order.
    saved(shape const& s, kept& from)
        : scale_1(from.until_b.take<float>(s.tokens())),
          scale_2(from.until_b.take<float>(s.tokens())),
          qkv(from.until_b.take<bf16>(3 * s.row_elements())),
          probabilities(from.until_b.take<bf16>(s.score_rows() * s.context)),
          normal_1(from.until_w.take<bf16>(s.row_elements())),
          mixed(from.until_w.take<bf16>(s.row_elements())),
          normal_2(from.until_w.take<bf16>(s.row_elements())),
          hidden(from.until_w.take<bf16>(s.tokens() * s.hidden())),
          active(from.until_w.take<bf16>(s.tokens() * s.hidden())),
          dqkv(from.gradients.take<bf16>(3 * s.row_elements())),
          dnorm_1(from.gradients.take<bf16>(s.row_elements())),
          dnorm_2(from.gradients.take<bf16>(s.row_elements())),
          dmiddle(from.gradients.take<bf16>(s.row_elements())) {}
  };

  /// Adds its parameters to a list; `part` is its place in the model.
  block(shape const& s, index part, weights& to) : s_(s) {
    auto const width = s.width;
    auto const deviation = 1.0F / std::sqrt(static_cast<float>(width));
    // Branches are added to the stream 2 * layers times; this keeps the sum's size.
    auto const branch = deviation / std::sqrt(2.0F * static_cast<float>(s.layers));
    auto const make_norm = [&](char const* gamma, char const* beta) {
      auto const first = to.add(part, gamma, width, 1.0F, 0.0F);
      return affine{first, to.add(part, beta, width, 0.0F, 0.0F)};
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
    auto const width = s_.width;
    scratch_space const room(s_, pieces(scratch));
    run(use.on,
        norm{
            .tokens = tokens,
            .width = width,
            .x = x,
            .result = norm_1_.result(use, k.normal_1, room.normed, k.scale_1)});
    qkv_.forward(use, tokens, room.normed, k.qkv);
    run(use.on,
        add_bias{.tokens = tokens, .width = 3 * width, .bias = use.p.value(qkv_.bias), .x = k.qkv});
    attention_forward(use, s_, k.qkv, k.probabilities, k.mixed);
    out_.forward(use, tokens, k.mixed, room.branch);
    add_branch const middle{
        .tokens = tokens,
        .width = width,
        .x = x,
        .branch = room.branch,
        .bias = use.p.value(out_.bias),
        .y = y};
    auto const normed = norm_2_.result(use, k.normal_2, room.normed, k.scale_2);
    run(use.on, add_branch_norm{.add = middle, .result = normed});
    up_.forward(use, tokens, room.normed, k.hidden);
    run(use.on,
        bias_gelu{
            .tokens = tokens,
            .width = s_.hidden(),
            .bias = use.p.value(up_.bias),
            .x = k.hidden,
            .active = k.active});
    down_.forward(use, tokens, k.active, room.branch);
    run(use.on,
        add_branch{
            .tokens = tokens,
            .width = width,
            .x = y,
            .branch = room.branch,
            .bias = use.p.value(down_.bias),
            .y = y});
  }

  /// Enqueues dx [T, C] from dy [T, C].
  void backward_input(
      compute const& use, saved const& k, bf16 const* dy, std::byte* scratch, bf16* dx) const {
    auto const tokens = s_.tokens();
    auto const width = s_.width;
    scratch_space const room(s_, pieces(scratch));
    down_.backward_input(use, tokens, dy, room.dactive);
    run(use.on,
        gelu_backward{.tokens = tokens, .width = s_.hidden(), .dy = room.dactive, .x = k.hidden});
    up_.backward_input(use, tokens, k.hidden, k.dnorm_2);
    norm_2_.backward_input(use, tokens, width, k.dnorm_2, k.normal_2, k.scale_2, dy, k.dmiddle);
    out_.backward_input(use, tokens, k.dmiddle, room.dmixed);
    attention_backward(use, s_, room.dmixed, k.qkv, k.probabilities, room.dscores, k.dqkv);
    qkv_.backward_input(use, tokens, k.dqkv, k.dnorm_1);
    norm_1_.backward_input(use, tokens, width, k.dnorm_1, k.normal_1, k.scale_1, k.dmiddle, dx);
  }

  /// Enqueues what adds to the gradients of the parameters.
  void backward_weight(
      compute const& use, saved const& k, bf16 const* dy, std::byte* scratch) const {
    auto const tokens = s_.tokens();
    auto const width = s_.width;
    scratch_space const room(s_, pieces(scratch));
    down_.backward_weight(use, tokens, k.active, dy, room.sums);
    norm_2_.again(use, tokens, width, k.normal_2, room.normed);
    up_.backward_weight(use, tokens, room.normed, k.hidden, room.sums);
    norm_2_.backward_weight(use, tokens, width, k.dnorm_2, k.normal_2, room.sums);
    out_.backward_weight(use, tokens, k.mixed, k.dmiddle, room.sums);
    norm_1_.again(use, tokens, width, k.normal_1, room.normed);
    qkv_.backward_weight(use, tokens, room.normed, k.dqkv, room.sums);
    norm_1_.backward_weight(use, tokens, width, k.dnorm_1, k.normal_1, room.sums);
  }

 private:
  // What passes use: F and W `normed`, F `branch`, W `sums`; B the rest, `dactive` being done with
  // when the others begin. Each pass has all the room from its start.
  struct scratch_space {
    scratch_space(shape const& s, pieces const& room) {
      pieces forward = room;
      normed = forward.take<bf16>(s.row_elements());
      pieces weight = forward;
      branch = forward.take<bf16>(s.row_elements());
      sums = weight.take<float>(column_sums::runs(s.tokens()) * s.hidden());
      pieces mlp = room;
      dactive = mlp.take<bf16>(s.tokens() * s.hidden());
      pieces mixing = room;
      dmixed = mixing.take<bf16>(s.row_elements());
      dscores = mixing.take<bf16>(s.score_rows() * s.context);
      bytes = std::max({forward.used(), weight.used(), mlp.used(), mixing.used()});
    }

    bf16* normed;
    bf16* branch;
    float* sums;
    bf16* dactive;
    bf16* dmixed;
    bf16* dscores;
    std::size_t bytes;
  };

  shape s_;
  affine norm_1_{}, norm_2_{};
  linear qkv_{}, out_{}, up_{}, down_{};
};

}  // namespace gpt::cuda
