// SPDX-License-Identifier: Apache-2.0
//
// The model, cut between blocks. A chunk is a run of its parts: one stage of a pipeline, or the
// whole model. Parts are counted from the input: embedding 0, blocks 1 to layers, head layers + 1.
#pragma once

#include "ends.hpp"

#include <optional>
#include <utility>
#include <vector>

namespace gpt {

/// Names the blocks of a chunk, first to last - 1.
struct block_range {
  index first;
  index last;
};

/// Cuts the blocks evenly; where that leaves some over, the first stages take one more each, as
/// the last has the head.
/// @param stages  at most `layers`
[[nodiscard]] inline block_range blocks_of_stage(index layers, index stages, index stage) {
  auto const share = layers / stages;
  auto const over = layers % stages;
  auto const first = stage * share + std::min(stage, over);
  return {first, first + share + (stage < over ? 1 : 0)};
}

/// Holds what a microbatch keeps in a chunk between its passes.
template <memory Memory>
struct chunk_saved {
  typename Memory::tensor until_b;
  typename Memory::tensor until_w;
  typename Memory::tensor gradients;
  typename Memory::tensor dy;  ///< [tokens, width] from the next chunk, from B until W
};

/// Is what a forward pass gives: rows for the next chunk or, at the end of the model, the loss.
template <memory Memory>
struct chunk_output {
  typename Memory::tensor y;  ///< [tokens, width]; empty at the end of the model
  double loss = 0.0;          ///< mean over the tokens of the microbatch, in nats
};

/// Is a run of blocks, with the embedding where it starts the model and the head where it ends it.
class chunk {
 public:
  /// Makes the parameters, a function of (seed, part).
  /// @param blocks        at least one
  /// @param microbatches  of a step: gradients are those of the mean loss over all of them
  chunk(model_config const& config, block_range blocks, int microbatches, std::uint64_t seed)
      : c_(config),
        microbatches_(microbatches),
        parameters_(seed),
        of_block_(block::takes(config)),
        keeps_(of_block_) {
    if (blocks.first == 0) embedding_.emplace(c_, 0, parameters_);
    for (index i = blocks.first; i < blocks.last; ++i) blocks_.emplace_back(c_, i + 1, parameters_);
    if (blocks.last == c_.layers) head_.emplace(c_, c_.layers + 1, parameters_);
    auto const at_end = head_ ? head::takes(c_) : footprint{};
    auto const rows = carved(row_floats());
    keeps_.until_b = count() * of_block_.until_b + at_end.until_b;
    keeps_.until_w = count() * of_block_.until_w + at_end.until_w;
    // The gradient that goes into each block lies there too, but for the one that comes in.
    auto const inside = count() - 1 + (head_ ? 1 : 0) + (embedding_ ? 1 : 0);
    keeps_.gradients = count() * of_block_.gradients + at_end.gradients + inside * rows;
    // Rows between parts during F, beside the scratch of the parts.
    keeps_.scratch = 2 * rows + std::max(of_block_.scratch, at_end.scratch);
  }

  /// @return whether it starts the model
  [[nodiscard]] bool is_first() const { return embedding_.has_value(); }
  /// @return whether it ends the model
  [[nodiscard]] bool is_last() const { return head_.has_value(); }
  /// @return what a microbatch takes in it
  [[nodiscard]] footprint const& keeps() const { return keeps_; }
  /// @return floats of what goes to the next chunk, and back
  [[nodiscard]] index row_floats() const { return c_.tokens() * c_.width; }
  /// @return its parameters and their gradients
  [[nodiscard]] parameter_set& parameters() { return parameters_; }
  /// @return its parameters and their gradients
  [[nodiscard]] parameter_set const& parameters() const { return parameters_; }

  /// Runs the forward pass of a microbatch.
  /// @param x  [tokens, width] from the chunk before; unused at the start of the model
  template <memory Memory>
  [[nodiscard]] chunk_output<Memory> forward(
      Memory& at, chunk_saved<Memory>& keep, batch const& of, float const* x) const {
    keep.until_b = at.allocate(keeps_.until_b);
    keep.until_w = at.allocate(keeps_.until_w);
    chunk_output<Memory> out;
    if (!is_last()) out.y = at.allocate_edge(row_floats());
    auto const scratch = at.allocate(keeps_.scratch);
    carver cut(const_cast<float*>(scratch.data()));
    float* rows = cut.take(row_floats());
    float* next = cut.take(row_floats());
    float* const rest = cut.take(0);
    if (is_first()) {
      embedding_->forward(parameters_, of, rows);
      x = rows;
    }
    for (index i = 0; i < count(); ++i) {
      auto* const y = i + 1 == count() && !is_last() ? out.y.data() : next;
      at_block(i).forward(parameters_, saved_block(keep, i), x, rest, y);
      x = y;
      std::swap(rows, next);
    }
    if (is_last())
      out.loss = head_->forward(parameters_, saved_head(keep), of, microbatches_, x, rest);
    return out;
  }

  /// Runs the pass that makes the gradient of the input, and frees what only it needed.
  /// @param dy  [tokens, width] from the chunk after, kept until W; empty at the end of the model
  /// @return dx [tokens, width]; empty at the start of the model
  template <memory Memory>
  [[nodiscard]] typename Memory::tensor backward_input(
      Memory& at, chunk_saved<Memory>& keep, typename Memory::tensor dy) const {
    keep.dy = std::move(dy);
    keep.gradients = at.allocate(keeps_.gradients);
    typename Memory::tensor out;
    if (!is_first()) out = at.allocate_edge(row_floats());
    {
      auto scratch = at.allocate(keeps_.scratch);
      if (is_last())
        head_->backward_input(parameters_, saved_head(keep), gradient_into(keep, count()));
      for (index i = count() - 1; i >= 0; --i) {
        auto* const dx = i == 0 && !is_first() ? out.data() : gradient_into(keep, i);
        at_block(i).backward_input(
            parameters_, saved_block(keep, i), gradient_into(keep, i + 1), scratch.data(), dx);
      }
    }
    keep.until_b = {};
    return out;
  }

  /// Runs the pass that adds to the gradients of the parameters, and frees the rest.
  template <memory Memory>
  void backward_weight(Memory& at, chunk_saved<Memory>& keep, batch const& of) {
    {
      auto scratch = at.allocate(keeps_.scratch);
      if (is_last()) head_->backward_weight(parameters_, saved_head(keep), scratch.data());
      for (index i = count() - 1; i >= 0; --i)
        at_block(i).backward_weight(
            parameters_, saved_block(keep, i), gradient_into(keep, i + 1), scratch.data());
      if (is_first()) embedding_->backward_weight(parameters_, of, gradient_into(keep, 0));
    }
    keep = {};
  }

 private:
  /// @return floats that a piece of this size takes in an allocation
  [[nodiscard]] static index carved(index size) {
    carver counter;
    static_cast<void>(counter.take(size));
    return counter.used();
  }

  [[nodiscard]] index count() const { return static_cast<index>(blocks_.size()); }
  [[nodiscard]] block const& at_block(index i) const {
    return blocks_[static_cast<std::size_t>(i)];
  }

  /// @return a piece of an allocation, or null before that is made
  template <class Tensor>
  [[nodiscard]] static float* piece(Tensor& of, index offset) {
    return of.data() == nullptr ? nullptr : of.data() + offset;
  }

  template <class Saved, class Keep>
  [[nodiscard]] Saved saved_at(Keep& keep, index before) const {
    carver until_b(piece(keep.until_b, before * of_block_.until_b));
    carver until_w(piece(keep.until_w, before * of_block_.until_w));
    carver gradients(piece(keep.gradients, before * of_block_.gradients));
    return Saved(c_, until_b, until_w, gradients);
  }
  template <class Keep>
  [[nodiscard]] block::saved saved_block(Keep& keep, index i) const {
    return saved_at<block::saved>(keep, i);
  }
  template <class Keep>
  [[nodiscard]] head::saved saved_head(Keep& keep) const {
    return saved_at<head::saved>(keep, count());
  }

  /// @return the gradient of what goes into block i; `count()` means into the head
  template <class Keep>
  [[nodiscard]] float* gradient_into(Keep& keep, index i) const {
    if (i == count() && !is_last()) return keep.dy.data();
    auto const own = count() * of_block_.gradients + (head_ ? head::takes(c_).gradients : 0);
    return keep.gradients.data() + own + (i - (is_first() ? 0 : 1)) * carved(row_floats());
  }

  model_config c_;
  int microbatches_;
  parameter_set parameters_;
  footprint of_block_;
  footprint keeps_;
  std::optional<embedding> embedding_;
  std::vector<block> blocks_;
  std::optional<head> head_;
};

/// Makes the whole model as one chunk.
[[nodiscard]] inline chunk whole_model(
    model_config const& config, int microbatches, std::uint64_t seed) {
  return {config, {0, config.layers}, microbatches, seed};
}

}  // namespace gpt
