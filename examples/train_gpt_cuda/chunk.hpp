// SPDX-License-Identifier: Apache-2.0
//
// A chunk is a run of the model's parts: one stage of a pipeline, or the whole model. Parts are
// counted from the input: embedding 0, blocks 1 to layers, head layers + 1. Passes enqueue.
#pragma once

#include "ends.hpp"
#include "train_gpt/text.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Hands out device memory as handles that free it, behind what is enqueued; it starts undefined.
/// `allocate_edge` is for what goes to another stage. Its models are zbpp::pass_context and
/// reused_memory.
template <class Memory>
concept memory = requires(Memory& m, std::size_t bytes) {
  { m.allocate(bytes).data() } -> std::same_as<std::byte*>;
  { m.allocate_edge(bytes).data() } -> std::same_as<std::byte*>;
};

/// Enqueues the work of a pass as it comes; pass_work, stages.hpp, may replay it.
struct directly {
  cudaStream_t on;

  /// Calls `work(stream)`.
  /// @param pointers  all memory that the work uses and that others would not know
  template <class Work>
  void operator()(std::initializer_list<void const*> /*pointers*/, Work const& work) const {
    work(on);
  }
};

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
  /// @param on            outlives the chunk
  /// @param microbatches  of a step: gradients are those of the mean loss over all of them
  chunk(shape const& s, text const& on, block_range blocks, int microbatches, std::uint64_t seed)
      : s_(s),
        text_(&on),
        microbatches_(microbatches),
        seed_(seed),
        weights_(seed),
        of_block_(block::takes(s)) {
    if (blocks.first == 0) embedding_.emplace(s_, 0, weights_);
    for (index i = blocks.first; i < blocks.last; ++i) blocks_.emplace_back(s_, i + 1, weights_);
    if (blocks.last == s_.layers) head_.emplace(s_, s_.layers + 1, weights_);
    auto const at_end = head_ ? head::takes(s_) : footprint{};
    auto const count = blocks_.size();
    keeps_.until_b = count * of_block_.until_b + at_end.until_b;
    keeps_.until_w = count * of_block_.until_w + at_end.until_w;
    if (embedding_ || head_) {
      starts_at_ = keeps_.until_w;
      pieces counted;
      static_cast<void>(counted.take<std::int64_t>(s_.sequences));
      keeps_.until_w += counted.used();
    }
    // The gradient that goes into each block lies there too, but for the one that comes in.
    auto const inside = count - 1 + (head_ ? 1 : 0) + (embedding_ ? 1 : 0);
    keeps_.gradients = count * of_block_.gradients + at_end.gradients + inside * carved();
    // Rows between parts during F, beside the scratch of the parts.
    keeps_.scratch = 2 * carved() + std::max(of_block_.scratch, at_end.scratch);
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
  /// @throws zbpp::error (device_failed)
  void prepare(zbpp::cuda::stream_ref on, int sm_count) {
    weights_.upload(on);
    scratch_ = device_array<std::byte>(keeps_.scratch);
    if (is_first() || is_last()) {
      letters_ = device_array<std::uint8_t>(text_->bytes().size());
      letters_.upload(on, text_->bytes());
    }
    multiply_.emplace(sm_count);
  }

  /// Enqueues the forward pass of a microbatch.
  /// @param how   `directly`, or what replays
  /// @param x     [tokens, width] from the chunk before; unused at the start of the model
  /// @param loss  gets, at the end of the model, the mean over the tokens of the microbatch
  /// @return y [tokens, width] for the next chunk; empty at the end of the model
  template <memory Memory, class How, class Tensor>
  [[nodiscard]] Tensor forward(
      Memory& at,
      How const& how,
      chunk_saved<Tensor>& keep,
      microbatch_number const& which,
      bf16 const* x,
      float* loss) {
    keep.until_b = at.allocate(keeps_.until_b);
    keep.until_w = at.allocate(keeps_.until_w);
    Tensor out;
    if (!is_last()) out = at.allocate_edge(row_bytes());
    auto* const y = reinterpret_cast<bf16*>(out.data());
    if (is_first() || is_last()) place(how.on, which, keep);
    how({keep.until_b.data(), keep.until_w.data(), x, y, loss},
        [&](cudaStream_t on) { enqueue_forward(with(on), keep, x, y, loss); });
    return out;
  }

  /// Enqueues the pass that makes the gradient of the input, and frees what only it needed.
  /// @param dy  [tokens, width] from the chunk after, kept until W; empty at the end of the model
  /// @return dx [tokens, width]; empty at the start of the model
  template <memory Memory, class How, class Tensor>
  [[nodiscard]] Tensor backward_input(
      Memory& at, How const& how, chunk_saved<Tensor>& keep, Tensor dy) {
    keep.dy = std::move(dy);
    keep.gradients = at.allocate(keeps_.gradients);
    Tensor out;
    if (!is_first()) out = at.allocate_edge(row_bytes());
    auto* const dx = reinterpret_cast<bf16*>(out.data());
    how({keep.until_b.data(), keep.until_w.data(), keep.gradients.data(), keep.dy.data(), dx},
        [&](cudaStream_t on) { enqueue_backward_input(with(on), keep, dx); });
    keep.until_b = {};
    return out;
  }

  /// Enqueues the pass that adds to the gradients of the parameters, and frees the rest.
  template <class How, class Tensor>
  void backward_weight(How const& how, chunk_saved<Tensor>& keep) {
    how({keep.until_w.data(), keep.gradients.data(), keep.dy.data()}, [&](cudaStream_t on) {
      auto const use = with(on);
      auto const count = blocks_.size();
      auto* const room = scratch_.data();
      if (is_last()) head_->backward_weight(use, saved_at<head::saved>(keep, count), room);
      for (auto i = count; i-- > 0;)
        blocks_[i].backward_weight(
            use, saved_at<block::saved>(keep, i), gradient_into(keep, i + 1), room);
      if (is_first()) embedding_->backward_weight(use, sequences(keep), gradient_into(keep, 0));
    });
    keep = {};
  }

 private:
  [[nodiscard]] compute with(cudaStream_t on) { return {on, *multiply_, weights_}; }

  /// @return bytes that rows take in an allocation
  [[nodiscard]] std::size_t carved() const {
    pieces counted;
    static_cast<void>(counted.take<bf16>(s_.row_elements()));
    return counted.used();
  }

  template <class Tensor>
  [[nodiscard]] std::int64_t* starts(chunk_saved<Tensor> const& keep) const {
    return reinterpret_cast<std::int64_t*>(keep.until_w.data() + starts_at_);
  }
  template <class Tensor>
  void place(
      cudaStream_t on, microbatch_number const& which, chunk_saved<Tensor> const& keep) const {
    run(on,
        place_sequences{
            .seed = seed_,
            .which = which,
            .places = text_->bytes().size() - static_cast<std::size_t>(s_.context),
            .sequences = s_.sequences,
            .first = starts(keep)});
  }
  template <class Tensor>
  [[nodiscard]] sequences_of sequences(chunk_saved<Tensor> const& keep) const {
    return {
        .text = letters_.data(),
        .letters = static_cast<index>(letters_.size()),
        .first = starts(keep),
        .sequences = s_.sequences,
        .context = s_.context};
  }

  template <class Tensor>
  void enqueue_forward(
      compute const& use, chunk_saved<Tensor> const& keep, bf16 const* x, bf16* y, float* loss) {
    pieces room(scratch_.data());
    auto* rows = room.take<bf16>(s_.row_elements());
    auto* next = room.take<bf16>(s_.row_elements());
    auto* const rest = room.take<std::byte>(0);
    if (is_first()) {
      embedding_->forward(use, sequences(keep), rows);
      x = rows;
    }
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      bool const ends = i + 1 == blocks_.size() && !is_last();
      auto* const to = ends ? y : next;
      blocks_[i].forward(use, saved_at<block::saved>(keep, i), x, rest, to);
      x = to;
      std::swap(rows, next);
    }
    if (!is_last()) return;
    auto const kept_there = saved_at<head::saved>(keep, blocks_.size());
    head_->forward(use, kept_there, sequences(keep), microbatches_, x, rest, loss);
  }

  template <class Tensor>
  void enqueue_backward_input(compute const& use, chunk_saved<Tensor> const& keep, bf16* dx) {
    auto const count = blocks_.size();
    if (is_last())
      head_->backward_input(use, saved_at<head::saved>(keep, count), gradient_into(keep, count));
    for (auto i = count; i-- > 0;) {
      auto* const to = i == 0 && !is_first() ? dx : gradient_into(keep, i);
      blocks_[i].backward_input(
          use, saved_at<block::saved>(keep, i), gradient_into(keep, i + 1), scratch_.data(), to);
    }
  }

  /// @return what a part keeps, after that of `before` blocks
  template <class Saved, class Tensor>
  [[nodiscard]] Saved saved_at(chunk_saved<Tensor> const& keep, std::size_t before) const {
    auto const piece = [](std::byte* first, std::size_t offset) {
      return pieces(first == nullptr ? nullptr : first + offset);
    };
    kept from{
        piece(keep.until_b.data(), before * of_block_.until_b),
        piece(keep.until_w.data(), before * of_block_.until_w),
        piece(keep.gradients.data(), before * of_block_.gradients)};
    return Saved(s_, from);
  }

  /// @return the gradient of what goes into block i; the number of blocks means into the head
  template <class Tensor>
  [[nodiscard]] bf16* gradient_into(chunk_saved<Tensor> const& keep, std::size_t i) const {
    auto const count = blocks_.size();
    if (i == count && !is_last()) return reinterpret_cast<bf16*>(keep.dy.data());
    auto const own = count * of_block_.gradients + (head_ ? head::takes(s_).gradients : 0);
    auto const at = own + (i - (is_first() ? 0 : 1)) * carved();
    return reinterpret_cast<bf16*>(keep.gradients.data() + at);
  }

  shape s_;
  text const* text_;
  int microbatches_;
  std::uint64_t seed_;
  weights weights_;
  footprint of_block_;
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
