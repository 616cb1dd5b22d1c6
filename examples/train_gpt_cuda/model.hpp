// SPDX-License-Identifier: Apache-2.0
//
// The parts of the model: a block, and the two ends: the embedding, which has a weight pass only,
// and the head, which turns rows into the loss. Names, sizes and first values of parameters are
// those of train_gpt.
#pragma once

#include "layers.hpp"

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

/// @return what a part takes, by what a microbatch keeps in it and by its scratch space
template <class Part>
[[nodiscard]] footprint footprint_of(shape const& s) {
  typename Part::saved const all{s, {}};
  typename Part::scratch_space const room{s, pieces()};
  return {
      all.from.until_b.used(), all.from.until_w.used(), all.from.gradients.used(), room.bytes()};
}

/// @return the deviation of the first values of weights with so many inputs
[[nodiscard]] inline float deviation_of(index inputs) {
  return 1.0F / std::sqrt(static_cast<float>(inputs));
}

/// Is a transformer block [tokens, width] -> [tokens, width].
class block {
 public:
  /// Points at what a microbatch keeps in a block; T tokens, C = width.
  struct saved {
    shape const& s;
    kept from;                                                  ///< cut in this order
    float* scale_1 = from.until_b.take<float>(s.tokens());      ///< [T]
    float* scale_2 = from.until_b.take<float>(s.tokens());      ///< [T]
    bf16* qkv = from.until_b.take<bf16>(3 * s.row_elements());  ///< [T, 3C]
    bf16* probabilities = from.until_b.take<bf16>(s.score_rows() * s.context);  ///< as scores
    bf16* hidden = from.until_b.take<bf16>(s.tokens() * s.hidden());            ///< into GELU
    bf16* normal_1 = from.until_w.take<bf16>(s.row_elements());                 ///< [T, C]
    bf16* mixed = from.until_w.take<bf16>(s.row_elements());                    ///< by attention
    bf16* normal_2 = from.until_w.take<bf16>(s.row_elements());                 ///< [T, C]
    bf16* active = from.until_w.take<bf16>(s.tokens() * s.hidden());            ///< out of GELU
    bf16* dqkv = from.gradients.take<bf16>(3 * s.row_elements());               ///< [T, 3C]
    bf16* dnorm_1 = from.gradients.take<bf16>(s.row_elements());                ///< [T, C]
    bf16* dnorm_2 = from.gradients.take<bf16>(s.row_elements());                ///< [T, C]
    bf16* dmiddle = from.gradients.take<bf16>(s.row_elements());         ///< of attention and MLP
    bf16* dhidden = from.gradients.take<bf16>(s.tokens() * s.hidden());  ///< [T, 4C]
  };
  /// Points at what passes use, each of which has all the room from its start: F and W `normed`, W
  /// `sums`, B the rest.
  struct scratch_space {
    shape const& s;
    pieces weight;
    pieces mixing = weight;
    bf16* normed = weight.take<bf16>(s.row_elements());
    // Four biases, two gammas, two betas.
    index widths = 3 * s.width + s.width + s.hidden() + s.width + 4 * s.width;
    std::byte* sums = weight.take<std::byte>(gradient_sums::bytes(s.tokens(), widths));
    bf16* dmixed = mixing.take<bf16>(s.row_elements());
    bf16* dscores = mixing.take<bf16>(s.score_rows() * s.context);

    /// @return how many they are
    [[nodiscard]] std::size_t bytes() const { return std::max(weight.used(), mixing.used()); }
  };

  /// Adds its parameters to a list; `part` is its place in the model.
  block(shape const& s, index part, weights& to)
      : norm_1_(to, part, "norm 1 gamma", "norm 1 beta", s.width),
        qkv_(to, part, "qkv weight", "qkv bias", s.width, 3 * s.width, deviation_of(s.width)),
        out_(to, part, "attention out weight", "attention out bias", s.width, s.width, branch(s)),
        norm_2_(to, part, "norm 2 gamma", "norm 2 beta", s.width),
        up_(to, part, "mlp up weight", "mlp up bias", s.width, s.hidden(), deviation_of(s.width)),
        down_(to, part, "mlp down weight", "mlp down bias", s.hidden(), s.width, branch(s) / 2.0F) {
  }

  /// Enqueues y [T, C] from x [T, C].
  void forward(
      compute const& use, saved const& k, bf16 const* x, std::byte* scratch, bf16* y) const {
    scratch_space const room{use.s, pieces(scratch)};
    norm_1_.forward(use, x, k.normal_1, k.scale_1, room.normed);
    qkv_.forward(use, room.normed, nullptr, k.qkv);
    attention(use).forward(k.qkv, k.probabilities, k.mixed);
    out_.forward(use, k.mixed, x, y);
    norm_2_.forward(use, y, k.normal_2, k.scale_2, room.normed);
    up_.forward_gelu(use, room.normed, k.hidden, k.active);
    down_.forward(use, k.active, y, y);
  }

  /// Enqueues dx [T, C] from dy [T, C].
  void backward_input(
      compute const& use, saved const& k, bf16 const* dy, std::byte* scratch, bf16* dx) const {
    scratch_space const room{use.s, pieces(scratch)};
    down_.backward_input(use, dy, k.dhidden, k.hidden);
    up_.backward_input(use, k.dhidden, k.dnorm_2);
    norm_2_.backward_input(use, k.dnorm_2, k.normal_2, k.scale_2, dy, k.dmiddle);
    out_.backward_input(use, k.dmiddle, room.dmixed);
    attention(use).backward(room.dmixed, k.qkv, k.probabilities, room.dscores, k.dqkv);
    qkv_.backward_input(use, k.dqkv, k.dnorm_1);
    norm_1_.backward_input(use, k.dnorm_1, k.normal_1, k.scale_1, k.dmiddle, dx);
  }

  /// Enqueues what adds to the gradients of the parameters.
  void backward_weight(
      compute const& use, saved const& k, bf16 const* dy, std::byte* scratch) const {
    scratch_space const room{use.s, pieces(scratch)};
    gradient_sums sums(use, room.sums);
    down_.backward_weight(use, k.active, dy, sums);
    norm_2_.backward_weight(use, k.dnorm_2, k.normal_2, room.normed, sums);
    up_.backward_weight(use, room.normed, k.dhidden, sums);
    out_.backward_weight(use, k.mixed, k.dmiddle, sums);
    norm_1_.backward_weight(use, k.dnorm_1, k.normal_1, room.normed, sums);
    qkv_.backward_weight(use, room.normed, k.dqkv, sums);
    sums.add();
  }

 private:
  // Branches are added to the stream 2 * layers times; this keeps the sum's size.
  [[nodiscard]] static float branch(shape const& s) {
    return deviation_of(s.width) / std::sqrt(2.0F * static_cast<float>(s.layers));
  }

  affine norm_1_;
  linear qkv_, out_;
  affine norm_2_;
  linear up_, down_;
};

/// Is the sum of a token's row and a position's row: sequences -> [tokens, width].
class embedding {
 public:
  /// Adds its parameters to a list; `part` is its place in the model.
  embedding(shape const& s, index part, weights& to)
      : token_(to.add(part, "token table", vocabulary * s.width, 0.0F, 0.02F)),
        position_(to.add(part, "position table", s.context * s.width, 0.0F, 0.02F)) {}

  /// Enqueues y [tokens, width].
  void forward(compute const& use, sequences_of const& of, bf16* y) const {
    use.run(embed{of, use.s.width, use.p.value(token_), use.p.value(position_), y});
  }
  /// Enqueues what adds to the gradients of the parameters, given dy [tokens, width].
  void backward_weight(compute const& use, sequences_of const& of, bf16 const* dy) const {
    auto const& s = use.s;
    auto* const positions = use.p.gradient(position_);
    use.run(embed_token_backward{of, s.width, dy, use.p.gradient(token_)});
    use.run(embed_position_backward{s.sequences, s.width, s.context, dy, positions});
  }

 private:
  parameter token_, position_;
};

/// Is the last norm, the logits and the cross-entropy: [tokens, width] and sequences -> loss.
class head {
 public:
  /// Points at what a microbatch keeps in the head; T tokens, C = width.
  struct saved {
    shape const& s;
    kept from;                                                         ///< cut in this order
    float* scale = from.until_b.take<float>(s.tokens());               ///< [T]
    bf16* normal = from.until_w.take<bf16>(s.row_elements());          ///< [T, C]
    bf16* dlogits = from.until_w.take<bf16>(s.tokens() * vocabulary);  ///< F makes it with the loss
    bf16* dnorm = from.gradients.take<bf16>(s.row_elements());         ///< [T, C]
  };
  /// Points at what passes use: F and W `normed`, F the logits and the losses, W the sums.
  struct scratch_space {
    shape const& s;
    pieces room;
    bf16* normed = room.take<bf16>(s.row_elements());
    pieces weight = room;
    float* logits = room.take<float>(s.tokens() * vocabulary);
    float* losses = room.take<float>(s.tokens());
    std::byte* sums =
        weight.take<std::byte>(gradient_sums::bytes(s.tokens(), vocabulary + 2 * s.width));

    /// @return how many they are
    [[nodiscard]] std::size_t bytes() const { return std::max(room.used(), weight.used()); }
  };

  /// Adds its parameters to a list; `part` is its place in the model.
  head(shape const& s, index part, weights& to)
      : norm_(to, part, "last norm gamma", "last norm beta", s.width),
        logits_(
            to,
            part,
            "head weight",
            "head bias",
            s.width,
            vocabulary,
            deviation_of(s.width) / 4.0F) {}

  /// Enqueues the loss of x [T, C], and its gradient to the logits, divided by `microbatches`.
  /// @param loss  gets the mean over the tokens, in nats
  void forward(
      compute const& use,
      saved const& k,
      sequences_of const& of,
      int microbatches,
      bf16 const* x,
      std::byte* scratch,
      float* loss) const {
    auto const tokens = use.s.tokens();
    scratch_space const room{use.s, pieces(scratch)};
    norm_.forward(use, x, k.normal, k.scale, room.normed);
    logits_.forward_unbiased(use, room.normed, room.logits);
    auto const share = 1.0F / (static_cast<float>(microbatches) * static_cast<float>(tokens));
    auto const* const bias = use.p.value(logits_.bias());
    use.run(cross_entropy{of, share, room.logits, bias, k.dlogits, room.losses});
    use.run(mean_loss{tokens, room.losses, loss});
  }

  /// Enqueues dx [T, C].
  void backward_input(compute const& use, saved const& k, bf16* dx) const {
    logits_.backward_input(use, k.dlogits, k.dnorm);
    norm_.backward_input(use, k.dnorm, k.normal, k.scale, nullptr, dx);
  }

  /// Enqueues what adds to the gradients of the parameters.
  void backward_weight(compute const& use, saved const& k, std::byte* scratch) const {
    scratch_space const room{use.s, pieces(scratch)};
    gradient_sums sums(use, room.sums);
    norm_.backward_weight(use, k.dnorm, k.normal, room.normed, sums);
    logits_.backward_weight(use, room.normed, k.dlogits, sums);
    sums.add();
  }

 private:
  affine norm_;
  linear logits_;
};

}  // namespace gpt::cuda
