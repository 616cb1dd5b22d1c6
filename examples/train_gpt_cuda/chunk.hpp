// SPDX-License-Identifier: Apache-2.0
//
// A chunk is a run of the model's parts: one stage of a pipeline, or the whole model. Parts are
// counted from the input: embedding 0, blocks 1 to layers, head layers + 1. Passes enqueue.
// Whatever reaches a device throws zbpp::error (device_failed) where that fails.
#pragma once

#include "model.hpp"
#include "train_gpt/text.hpp"
#include <zbpp/cuda/handles.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Says what is trained, and how.
struct training {
  shape model;
  adam_settings optimizer;
  int microbatches = 8;
  std::uint64_t seed = 1;
  bool replays = false;   ///< whether pipelines replay steps
  int steps_at_once = 1;  ///< then
};

/// Holds what a microbatch keeps in a chunk between its passes.
template <class Tensor>
struct chunk_saved {
  Tensor until_b;
  Tensor until_w;
  Tensor gradients;
  Tensor dy;  ///< [tokens, width] from the next chunk, from B until W
};

/// Is a run of blocks, with the embedding where it starts the model and the head where it ends it.
class chunk {
 public:
  /// Lists the parameters; all is on the host until `prepare`.
  /// @param how  gradients are those of the mean loss over all its microbatches
  /// @param on   outlives the chunk
  chunk(training const& how, text const& on, range blocks)
      : how_(how),
        s_(how.model),
        text_(&on),
        weights_(how.seed),
        of_block_(footprint_of<block>(s_)) {
    if (blocks.first == 0) embedding_.emplace(s_, 0, weights_);
    for (index i = blocks.first; i < blocks.last; ++i) blocks_.emplace_back(s_, i + 1, weights_);
    if (blocks.last == s_.layers) head_.emplace(s_, s_.layers + 1, weights_);
    if (head_) of_head_ = footprint_of<head>(s_);
    auto const count = blocks_.size();
    keeps_.until_b = count * of_block_.until_b + of_head_.until_b;
    starts_at_ = count * of_block_.until_w + of_head_.until_w;
    keeps_.until_w = starts_at_ + (sees_text() ? pieces::bytes<std::int64_t>(s_.sequences) : 0);
    // The gradient that goes into each block lies there too, but for the one that comes in.
    auto const inside = count - 1 + (head_ ? 1 : 0) + (embedding_ ? 1 : 0);
    keeps_.gradients = count * of_block_.gradients + of_head_.gradients + inside * carved();
    // Rows between parts during F, beside the scratch of the parts.
    keeps_.scratch = 2 * carved() + std::max(of_block_.scratch, of_head_.scratch);
  }

  /// @return whether it starts the model
  [[nodiscard]] bool is_first() const { return embedding_.has_value(); }
  /// @return whether it ends the model
  [[nodiscard]] bool is_last() const { return head_.has_value(); }
  /// @return what a microbatch takes in it
  [[nodiscard]] footprint const& keeps() const { return keeps_; }
  /// @return bytes of what goes to the next chunk, and back
  [[nodiscard]] std::size_t row_bytes() const {
    return static_cast<std::size_t>(s_.row_elements()) * sizeof(bf16);
  }
  /// @return its parameters
  [[nodiscard]] weights const& parameters() const { return weights_; }

  /// @return whether all is on a device
  [[nodiscard]] bool is_prepared() const { return multiply_.has_value(); }
  /// Makes everything on the current device, once, and waits until it is there.
  /// @param sm_count  multiprocessors that the stream has
  void prepare(zbpp::cuda::stream_ref on, int sm_count) {
    weights_.upload(on);
    scratch_ = device_array<std::byte>(keeps_.scratch);
    if (sees_text()) {
      letters_ = device_array<std::uint8_t>(text_->bytes().size());
      upload(on, text_->bytes(), letters_.data());
    }
    multiply_.emplace(sm_count);
  }

  /// Enqueues the forward pass of a microbatch.
  /// @param at    hands out device memory as handles that free it, behind what is enqueued; by
  ///              `allocate_edge` what goes to another stage: zbpp::pass_context or reused_memory
  /// @param x     [tokens, width] from the chunk before; unused at the start of the model
  /// @param loss  gets, at the end of the model, the mean over the tokens of the microbatch
  /// @return y [tokens, width] for the next chunk; empty at the end of the model
  template <class Memory, class Tensor>
  Tensor forward(
      Memory& at,
      cudaStream_t on,
      chunk_saved<Tensor>& keep,
      microbatch_number const& which,
      bf16 const* x,
      float* loss) {
    keep.until_b = at.allocate(keeps_.until_b);
    keep.until_w = at.allocate(keeps_.until_w);
    Tensor out;
    if (!is_last()) out = at.allocate_edge(row_bytes());
    auto* const y = reinterpret_cast<bf16*>(out.data());
    auto const places = text_->bytes().size() - static_cast<std::size_t>(s_.context);
    auto const in = places_in(keep);
    if (sees_text()) run(on, place_sequences{how_.seed, which, places, s_.sequences, in.starts});
    enqueue_forward(with(on), in, x, y, loss);
    return out;
  }

  /// Enqueues the pass that makes the gradient of the input, and frees what only it needed.
  /// @param dy  [tokens, width] from the chunk after, kept until W; empty at the end of the model
  /// @return dx [tokens, width]; empty at the start of the model
  template <class Memory, class Tensor>
  Tensor backward_input(Memory& at, cudaStream_t on, chunk_saved<Tensor>& keep, Tensor dy) {
    keep.dy = std::move(dy);
    keep.gradients = at.allocate(keeps_.gradients);
    Tensor out;
    if (!is_first()) out = at.allocate_edge(row_bytes());
    auto* const dx = reinterpret_cast<bf16*>(out.data());
    enqueue_backward_input(with(on), places_in(keep), dx);
    keep.until_b = {};
    return out;
  }

  /// Enqueues the pass that adds to the gradients of the parameters, and frees the rest.
  template <class Tensor>
  void backward_weight(cudaStream_t on, chunk_saved<Tensor>& keep) {
    enqueue_backward_weight(with(on), places_in(keep));
    keep = {};
  }

 private:
  // Points at what a microbatch keeps; null where it is not there.
  struct kept_places {
    std::byte* until_b;
    std::byte* until_w;
    std::byte* gradients;
    bf16 const* dy;
    std::int64_t* starts;  // of sequences
  };

  [[nodiscard]] bool sees_text() const { return is_first() || is_last(); }
  [[nodiscard]] compute with(cudaStream_t on) const { return {on, s_, *multiply_, weights_}; }
  // Bytes that rows take in an allocation.
  [[nodiscard]] std::size_t carved() const { return pieces::bytes<bf16>(s_.row_elements()); }

  template <class Tensor>
  [[nodiscard]] kept_places places_in(chunk_saved<Tensor> const& keep) const {
    return {
        keep.until_b.data(),
        keep.until_w.data(),
        keep.gradients.data(),
        reinterpret_cast<bf16 const*>(keep.dy.data()),
        reinterpret_cast<std::int64_t*>(keep.until_w.data() + starts_at_)};
  }
  [[nodiscard]] sequences_of sequences(kept_places const& in) const {
    auto const letters = static_cast<index>(letters_.size());
    return {letters_.data(), letters, in.starts, s_.sequences, s_.context};
  }
  // What a part keeps, after that of `before` blocks.
  template <class Part>
  [[nodiscard]] typename Part::saved saved_at(kept_places const& in, std::size_t before) const {
    auto const piece = [&](std::byte* first, std::size_t of_each) {
      return pieces(first == nullptr ? nullptr : first + before * of_each);
    };
    return {
        s_,
        {piece(in.until_b, of_block_.until_b),
         piece(in.until_w, of_block_.until_w),
         piece(in.gradients, of_block_.gradients)}};
  }
  // The gradient of what goes into block i; the number of blocks means into the head.
  [[nodiscard]] bf16* gradient_into(kept_places const& in, std::size_t i) const {
    auto const own = blocks_.size() * of_block_.gradients + of_head_.gradients;
    return reinterpret_cast<bf16*>(in.gradients + own + (i - (is_first() ? 0 : 1)) * carved());
  }
  // The gradient of what block i gave.
  [[nodiscard]] bf16 const* gradient_of(kept_places const& in, std::size_t i) const {
    return i + 1 == blocks_.size() && !is_last() ? in.dy : gradient_into(in, i + 1);
  }

  void enqueue_forward(
      compute const& use, kept_places const& in, bf16 const* x, bf16* y, float* loss) const {
    pieces room(scratch_.data());
    auto* rows = room.take<bf16>(s_.row_elements());
    auto* next = room.take<bf16>(s_.row_elements());
    auto* const rest = room.take<std::byte>(0);
    if (is_first()) {
      embedding_->forward(use, sequences(in), rows);
      x = rows;
    }
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      bool const ends = i + 1 == blocks_.size() && !is_last();
      auto* const to = ends ? y : next;
      blocks_[i].forward(use, saved_at<block>(in, i), x, rest, to);
      x = to;
      std::swap(rows, next);
    }
    if (!is_last()) return;
    auto const last = saved_at<head>(in, blocks_.size());
    head_->forward(use, last, sequences(in), how_.microbatches, x, rest, loss);
  }

  void enqueue_backward_input(compute const& use, kept_places const& in, bf16* dx) const {
    auto const count = blocks_.size();
    if (is_last()) head_->backward_input(use, saved_at<head>(in, count), gradient_into(in, count));
    for (auto i = count; i-- > 0;) {
      auto* const to = i == 0 && !is_first() ? dx : gradient_into(in, i);
      auto const kept_there = saved_at<block>(in, i);
      blocks_[i].backward_input(use, kept_there, gradient_of(in, i), scratch_.data(), to);
    }
  }

  void enqueue_backward_weight(compute const& use, kept_places const& in) const {
    auto* const room = scratch_.data();
    if (is_last()) head_->backward_weight(use, saved_at<head>(in, blocks_.size()), room);
    for (auto i = blocks_.size(); i-- > 0;)
      blocks_[i].backward_weight(use, saved_at<block>(in, i), gradient_of(in, i), room);
    if (is_first()) embedding_->backward_weight(use, sequences(in), gradient_into(in, 0));
  }

  training how_;
  shape s_;
  text const* text_;
  weights weights_;
  footprint of_block_;
  footprint of_head_ = {};  // none where it has no head
  footprint keeps_;
  std::size_t starts_at_ = 0;  // in what is kept until W
  std::optional<embedding> embedding_;
  std::vector<block> blocks_;
  std::optional<head> head_;
  device_array<std::byte> scratch_;
  device_array<std::uint8_t> letters_;
  std::optional<products> multiply_;
};

}  // namespace gpt::cuda
