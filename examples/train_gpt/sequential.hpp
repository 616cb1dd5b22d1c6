// SPDX-License-Identifier: Apache-2.0
//
// The reference: the whole model in one loop, microbatch after microbatch. It shares the maths with
// the pipeline and nothing else, so that being identical to it says something.
#pragma once

#include "model.hpp"
#include "optimizer.hpp"

#include <cstdint>

namespace gpt {

/// Says what is trained, on what, and how.
struct training {
  model_config model;
  optimizer_settings optimizer;
  int microbatches = 8;
  std::uint64_t seed = 1;
};

/// Trains the whole model on one thread.
class sequential_trainer {
 public:
  /// @param on  outlives the trainer
  sequential_trainer(training const& how, text const& on)
      : how_(how),
        text_(&on),
        model_(whole_model(how.model, how.microbatches, how.seed)),
        optimizer_(how.optimizer, model_.parameters().values().size()) {}

  /// Runs every microbatch to its end, in order, and takes one optimizer step.
  /// @param between  called before each microbatch; what it throws ends the training
  /// @return the mean loss of the step, in nats a byte
  template <class Between>
  double step(Between const& between) {
    double total = 0.0;
    heap_memory heap;
    for (int i = 0; i < how_.microbatches; ++i) {
      between();
      batch const of(how_.model, *text_, how_.seed, step_, i);
      chunk_saved<heap_memory> keep;
      auto const out = model_.forward(heap, keep, of, nullptr);
      auto const nothing = model_.backward_input(heap, keep, {});
      static_cast<void>(nothing);
      model_.backward_weight(heap, keep, of);
      total += out.loss;
    }
    optimizer_.update(model_.parameters().values(), model_.parameters().gradients());
    ++step_;
    return total / how_.microbatches;
  }
  /// As above, with nothing between.
  double step() {
    return step([] {});
  }

  /// @return the model as trained so far
  [[nodiscard]] chunk const& model() const { return model_; }

 private:
  training how_;
  text const* text_;
  chunk model_;
  optimizer optimizer_;
  std::int64_t step_ = 0;
};

}  // namespace gpt
