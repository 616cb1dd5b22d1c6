// SPDX-License-Identifier: Apache-2.0
//
// Passes of a chunk outside a pipeline, on rows of zeros: to load every kernel before the first
// step, and to measure.
#pragma once

#include "sequential.hpp"

#include <utility>

namespace gpt::cuda {

/// Enqueues the passes of one microbatch, F, B, W, as often as asked.
class rehearsal {
 public:
  /// @param of    was prepared; outlives the rehearsal
  /// @param on    outlives the rehearsal
  /// @param stream  the one that runs the passes
  /// @throws zbpp::cuda::cuda_error
  rehearsal(chunk& of, shape const& s, text const& on, zbpp::cuda::stream_ref stream)
      : chunk_(&of), stream_(stream), batch_(s.of_text(), on, 0, 0, 0), zeros_(of.row_bytes()) {
    zeros_.clear(stream);
  }

  /// Enqueues F.
  void forward() {
    memory_.begin();
    auto const* const x = reinterpret_cast<bf16 const*>(zeros_.data());
    static_cast<void>(chunk_->forward(memory_, directly{stream_}, keep_, batch_, x, loss_.data()));
  }
  /// Enqueues B.
  void backward_input() {
    static_cast<void>(chunk_->backward_input(memory_, directly{stream_}, keep_, {zeros_.data()}));
  }
  /// Enqueues W.
  void backward_weight() { chunk_->backward_weight(directly{stream_}, keep_); }

 private:
  chunk* chunk_;
  zbpp::cuda::stream_ref stream_;
  batch batch_;
  device_array<std::byte> zeros_;
  device_array<float> loss_{1};
  reused_memory memory_;
  chunk_saved<reused_memory::tensor> keep_;
};

/// Gets a chunk ready on the current device, and runs every kernel and product that its passes
/// have, so that no step has to load one. Parameters and gradients are afterwards as they were.
/// @throws zbpp::error (device_failed)
inline void get_ready(
    chunk& of, shape const& s, text const& on, zbpp::cuda::stream_ref stream, int sm_count) {
  of.prepare(stream, sm_count);
  rehearsal once(of, s, on, stream);
  once.forward();
  once.backward_input();
  once.backward_weight();
  of.parameters().clear_gradients(stream);
  stream.synchronize();
}

}  // namespace gpt::cuda
