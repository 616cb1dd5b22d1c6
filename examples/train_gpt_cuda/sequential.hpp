// SPDX-License-Identifier: Apache-2.0
//
// The reference: the whole model on one stream, microbatch after microbatch. It shares kernels and
// products with the pipeline and nothing else, so that being identical to it says something. Passes
// on rows of zeros load every kernel before the first step.
#pragma once

#include "chunk.hpp"
#include "train_gpt/sequential.hpp"
#include "weights.hpp"
#include <zbpp/cuda/device_context.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/rank_device.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpt::cuda {

/// Hands out the same memory in every round of the same requests: right on one stream, where a
/// round is through with it before the next begins.
class reused_memory {
 public:
  /// Is memory that nobody frees.
  struct tensor {
    std::byte* first = nullptr;
    /// @return the first byte
    [[nodiscard]] std::byte* data() const { return first; }
  };

  /// @return memory; made when this round asks for more pieces than the ones before, or larger ones
  [[nodiscard]] tensor allocate(std::size_t bytes) {
    if (next_ == all_.size()) all_.emplace_back(bytes);
    if (all_[next_].size() < bytes) all_[next_] = device_array<std::byte>(bytes);
    return {all_[next_++].data()};
  }
  /// @return memory; nothing is sent anywhere
  [[nodiscard]] tensor allocate_edge(std::size_t bytes) { return allocate(bytes); }
  /// Starts a round.
  void begin() { next_ = 0; }

 private:
  std::vector<device_array<std::byte>> all_;
  std::size_t next_ = 0;
};

/// Trains the whole model on one stream.
class sequential_trainer {
 public:
  /// @param on  outlives the trainer
  /// @param at  the current device, and a stream of it
  sequential_trainer(training const& how, text const& on, zbpp::cuda::rank_device const& at)
      : how_(how),
        place_(at, how.microbatches, {}, {}),
        stream_(place_.compute()),
        model_(how, on, {0, how.model.layers}),
        optimizer_(how.optimizer, model_.parameters()),
        steps_(how.optimizer.base),
        losses_(static_cast<std::size_t>(how.microbatches)) {
    model_.prepare(stream_, place_.sm_count());
    optimizer_.prepare(model_.parameters());
  }

  /// Runs every microbatch to its end, in order.
  /// @param between  called before each microbatch; what it throws ends the training
  /// @return the mean loss, in nats a byte
  template <class Between>
  double accumulate(Between const& between) {
    for (int i = 0; i < how_.microbatches; ++i) {
      between();
      chunk_saved<reused_memory::tensor> keep;
      memory_.begin();
      model_.forward(memory_, stream_, keep, {i, step_}, nullptr, losses_.data() + i);
      model_.backward_input(memory_, stream_, keep, {});
      model_.backward_weight(stream_, keep);
    }
    double total = 0.0;
    for (float const loss : download(stream_, losses_.data(), losses_.size()))
      total += static_cast<double>(loss);
    return total / how_.microbatches;
  }

  /// Runs every microbatch and takes one optimizer step.
  /// @return the mean loss of the step, in nats a byte
  /// @param between  as above
  template <class Between>
  double step(Between const& between) {
    auto const loss = accumulate(between);
    steps_.take(optimizer_, {no_memory_, zbpp::backend_kind::cuda, &place_});
    stream_.synchronize();
    ++step_;
    return loss;
  }

  /// @return the model as trained so far
  [[nodiscard]] chunk const& model() const { return model_; }

 private:
  training how_;
  zbpp::cuda::device_context place_;
  zbpp::cuda::stream_ref stream_;
  chunk model_;
  chunk_optimizer optimizer_;
  reference_steps steps_;
  zbpp::arena no_memory_;  // the optimizer takes none
  device_array<float> losses_;
  reused_memory memory_;
  std::int64_t step_ = 0;
};

/// Gets a chunk ready on the current device, and runs every kernel and product that its passes
/// have, so that no step has to load one. Parameters and gradients are afterwards as they were.
inline void get_ready(chunk& of, zbpp::cuda::stream_ref stream, int sm_count) {
  of.prepare(stream, sm_count);
  device_array<std::byte> const zeros(of.row_bytes());
  zbpp::cuda::check(cudaMemsetAsync(zeros.data(), 0, zeros.size(), stream));
  device_array<float> const loss(1);
  reused_memory memory;
  chunk_saved<reused_memory::tensor> keep;
  auto const* const x = reinterpret_cast<bf16 const*>(zeros.data());
  of.forward(memory, stream, keep, {0, 0}, x, loss.data());
  of.backward_input(memory, stream, keep, {zeros.data()});
  of.backward_weight(stream, keep);
  of.parameters().clear_gradients(stream);
  stream.synchronize();
}

}  // namespace gpt::cuda
