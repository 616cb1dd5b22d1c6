// SPDX-License-Identifier: Apache-2.0
//
// The reference: the whole model in one loop, microbatch after microbatch. It shares the maths with
// the pipeline and nothing else, so that being identical to it says something.
#pragma once

#include "model.hpp"
#include "optimizer.hpp"
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpt {

/// Says what is trained, on what, and how.
struct training {
  model_config model;
  optimizer_settings optimizer;
  int microbatches = 8;
  std::uint64_t seed = 1;
  /// Whether the norm of all gradients decides about each step: they are clipped to `clip`, and a
  /// step is skipped where they are not finite.
  bool needs_norm = false;
  double clip = 0.0;  ///< most that the norm may be; 0 clips nothing
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
        gradients_(static_cast<std::size_t>(optimizer_.rule().layers())) {}

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
    update();
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
  void update() {
    auto& rule = optimizer_.rule();
    zbpp::pass_context const at(memory_);
    zbpp::step_settings next{.updates = updates_, .learning_rate = how_.optimizer.rate(updates_)};
    if (how_.needs_norm) {
      rule.measure(gradients_, at);
      auto const verdict = zbpp::judge(gradients_, how_.clip, 1.0);
      if (!verdict.is_finite) return rule.skip(at);
      next.coefficient = verdict.coefficient;
    }
    rule.step(next, at);
    ++updates_;
  }

  training how_;
  text const* text_;
  chunk model_;
  optimizer optimizer_;
  std::vector<zbpp::gradient_state> gradients_;  // by layer
  zbpp::arena memory_;                           // optimizers on the CPU take nothing from it
  std::int64_t step_ = 0;
  std::int64_t updates_ = 0;  // steps that were not skipped
};

}  // namespace gpt
