// SPDX-License-Identifier: Apache-2.0
//
// The optimizer steps of a reference, which has the whole model and waits for nobody: it measures
// all gradients, judges them, and steps.
#pragma once

#include "optimizer_settings.hpp"
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gpt {

/// Takes the optimizer steps of the whole model.
class reference_steps {
 public:
  explicit reference_steps(optimizer_settings const& how) : how_(how) {}

  /// Takes a step with the gradients that are there, or skips it where they are not finite.
  /// @param rule  of the whole model
  /// @param at    where the model is
  void take(zbpp::optimizer_ref const& rule, zbpp::pass_context at) {
    zbpp::step_settings next{.updates = updates_, .learning_rate = how_.rate(updates_)};
    if (how_.needs_norm) {
      measure(rule, at);
      auto const verdict = zbpp::judge(gradients_, how_.clip, 1.0);
      if (!verdict.is_finite) return rule.skip(at);
      next.coefficient = verdict.coefficient;
    }
    rule.step(next, at);
    ++updates_;
  }

 private:
  // Measures all layers; tied ones count once.
  void measure(zbpp::optimizer_ref const& rule, zbpp::pass_context at) {
    gradients_.assign(static_cast<std::size_t>(rule.layers()), {});
    rule.measure(gradients_, at);
    bool has_tied = false;
    for (int layer = 0; layer < rule.layers(); ++layer)
      if (rule.is_tied(layer) && std::exchange(has_tied, true))
        gradients_[static_cast<std::size_t>(layer)] = {};
  }

  optimizer_settings how_;
  std::vector<zbpp::gradient_state> gradients_;  // by layer
  std::int64_t updates_ = 0;                     // steps that were not skipped
};

}  // namespace gpt
