// SPDX-License-Identifier: Apache-2.0
//
// The reference: the whole model in one loop, microbatch after microbatch. It shares the maths with
// the pipeline and nothing else, so that being identical to it says something.
#pragma once

#include "model.hpp"
#include "optimizer.hpp"
#include "reference_steps.hpp"
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

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
        optimizer_(how.optimizer, model_.parameters()),
        steps_(how.optimizer) {}

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
    sum_tied();
    steps_.take(optimizer_.rule(), zbpp::pass_context(memory_));
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
  // Gives all tied pieces the sum of their gradients, in the order of the model.
  void sum_tied() {
    auto& all = model_.parameters();
    std::span<float> sum;
    for (auto const& e : all.entries()) {
      if (!e.is_tied) continue;
      std::span const own(all.gradient(e.at), static_cast<std::size_t>(e.at.size));
      if (sum.empty())
        sum = own;
      else
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
    }
    for (auto const& e : all.entries())
      if (e.is_tied) std::ranges::copy(sum, all.gradient(e.at));
  }

  training how_;
  text const* text_;
  chunk model_;
  optimizer optimizer_;
  reference_steps steps_;
  zbpp::arena memory_;  // optimizers on the CPU take nothing from it
  std::int64_t step_ = 0;
};

}  // namespace gpt
