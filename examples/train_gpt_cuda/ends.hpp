// SPDX-License-Identifier: Apache-2.0
//
// The two ends of the model: the embedding, which has a weight pass only, and the head, which turns
// rows into the loss. Names, sizes and first values of their parameters are those of train_gpt.
#pragma once

#include "block.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace gpt::cuda {

/// Is the sum of a token's row and a position's row: sequences -> [tokens, width].
class embedding {
 public:
  /// Adds its parameters to a list; `part` is its place in the model.
  embedding(shape const& s, index part, weights& to)
      : s_(s),
        token_(to.add(part, "token table", vocabulary * s.width, 0.0F, 0.02F)),
        position_(to.add(part, "position table", s.context * s.width, 0.0F, 0.02F)) {}

  /// Enqueues y [tokens, width].
  void forward(compute const& use, sequences_of const& of, bf16* y) const {
    run(use.on,
        embed{
            .of = of,
            .width = s_.width,
            .token_table = use.p.value(token_),
            .position_table = use.p.value(position_),
            .y = y});
  }
  /// Enqueues what adds to the gradients of the parameters, given dy [tokens, width].
  void backward_weight(compute const& use, sequences_of const& of, bf16 const* dy) const {
    run(use.on,
        embed_token_backward{
            .of = of, .width = s_.width, .dy = dy, .gradient = use.p.gradient(token_)});
    run(use.on,
        embed_position_backward{
            .sequences = s_.sequences,
            .width = s_.width,
            .context = s_.context,
            .dy = dy,
            .gradient = use.p.gradient(position_)});
  }

 private:
  shape s_;
  parameter token_, position_;
};

/// Is the last norm, the logits and the cross-entropy: [tokens, width] and sequences -> loss.
class head {
 public:
  /// Points at what a microbatch keeps in the head; T tokens, C = width.
  struct saved {
    float* scale;   ///< [T], until B
    bf16* normal;   ///< [T, C], until W
    bf16* dlogits;  ///< [T, vocabulary], until W: F makes the gradient with the loss
    bf16* dnorm;    ///< [T, C], from B until W

    /// Cuts it out, always in the same order.
    saved(shape const& s, kept& from)
        : scale(from.until_b.take<float>(s.tokens())),
          normal(from.until_w.take<bf16>(s.row_elements())),
          dlogits(from.until_w.take<bf16>(s.tokens() * vocabulary)),
          dnorm(from.gradients.take<bf16>(s.row_elements())) {}
  };

  /// Adds its parameters to a list; `part` is its place in the model.
  head(shape const& s, index part, weights& to) : s_(s) {
    auto const deviation = 1.0F / std::sqrt(static_cast<float>(s.width));
    norm_.width = s.width;
    norm_.gamma = to.add(part, "last norm gamma", s.width, 1.0F, 0.0F);
    norm_.beta = to.add(part, "last norm beta", s.width, 0.0F, 0.0F);
    logits_ = {s.width, vocabulary, {}, {}};
    logits_.weight = to.add(part, "head weight", vocabulary * s.width, 0.0F, deviation / 4.0F);
    logits_.bias = to.add(part, "head bias", vocabulary, 0.0F, 0.0F);
  }

  /// @return what a microbatch takes in a head of this size
  [[nodiscard]] static footprint takes(shape const& s) {
    return footprint_of<saved>(s, scratch_space(s, pieces()).bytes);
  }

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
    auto const tokens = s_.tokens();
    scratch_space const room(s_, pieces(scratch));
    norm_.forward(use, tokens, x, k.normal, k.scale, room.normed);
    logits_.forward_unbiased(use, tokens, room.normed, room.logits);
    run(use.on,
        cross_entropy{
            .of = of,
            .share = 1.0F / (static_cast<float>(microbatches) * static_cast<float>(tokens)),
            .logits = room.logits,
            .bias = use.p.value(logits_.bias),
            .dlogits = k.dlogits,
            .losses = room.losses});
    run(use.on, mean_loss{.tokens = tokens, .losses = room.losses, .mean = loss});
  }

  /// Enqueues dx [T, C].
  void backward_input(compute const& use, saved const& k, bf16* dx) const {
    logits_.backward_input(use, s_.tokens(), k.dlogits, k.dnorm);
    norm_.backward_input(use, s_.tokens(), k.dnorm, k.normal, k.scale, nullptr, dx);
  }

  /// Enqueues what adds to the gradients of the parameters.
  void backward_weight(compute const& use, saved const& k, std::byte* scratch) const {
    auto const tokens = s_.tokens();
    scratch_space const room(s_, pieces(scratch));
    gradient_sums sums(tokens, room.sums);
    norm_.backward_weight(use, tokens, k.dnorm, k.normal, room.normed, sums);
    logits_.backward_weight(use, tokens, room.normed, k.dlogits, sums);
    sums.add(use.on);
  }

 private:
  // F and W use `normed`, F the logits and the losses, W the sums.
  struct scratch_space {
    scratch_space(shape const& s, pieces room) {
      normed = room.take<bf16>(s.row_elements());
      pieces weight = room;
      logits = room.take<float>(s.tokens() * vocabulary);
      losses = room.take<float>(s.tokens());
      auto const of_sums = gradient_sums::bytes(s.tokens(), vocabulary + 2 * s.width);
      sums = weight.take<std::byte>(static_cast<index>(of_sums));
      bytes = std::max(room.used(), weight.used());
    }

    bf16* normed;
    float* logits;
    float* losses;
    std::byte* sums;
    std::size_t bytes;
  };

  shape s_;
  affine norm_{};
  linear logits_{};
};

}  // namespace gpt::cuda
