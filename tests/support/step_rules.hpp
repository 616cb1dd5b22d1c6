// SPDX-License-Identifier: Apache-2.0
//
// The rules of optimizer steps, written out apart from those of the library: clipping, loss scales,
// skipped steps, accumulation, and steps on which ranks do not agree.
#pragma once

#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/training.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace zbpp::test {

/// Decides about the steps of a training, one after the other.
class step_rules {
 public:
  /// @param options  outlive it
  explicit step_rules(training_options const& options)
      : options_(&options), scale_(options.scaling.initial) {}

  /// By what the losses of the next step are multiplied.
  [[nodiscard]] double scale() const { return scale_; }
  /// Whether an optimizer step follows a step.
  [[nodiscard]] bool is_due(int step) const { return (step + 1) % options_->accumulate == 0; }

  struct verdict {
    bool is_agreed;          ///< else each stage steps as if it were alone
    bool is_finite;          ///< else nobody steps
    step_settings together;  ///< of a stage that goes by the norm
    step_settings alone;
    double norm;         ///< as it is reported: 0 where ranks do not agree
    double coefficient;  ///< the same: 1 where they do not
  };
  /// @param squares  of all gradients, with the loss scale; infinite where one is not finite
  verdict judge(double squares) {
    bool const is_agreed = steps_++ == due_;
    auto const norm = std::sqrt(squares) / scale_;
    bool const is_finite = std::isfinite(norm);
    double coefficient = 1;
    if (is_finite && options_->clip > 0 && options_->clip / (norm + 1e-6) < 1)
      coefficient = options_->clip / (norm + 1e-6);
    step_settings const alone{updates_, options_->learning_rate(updates_), 1, scale_, true};
    auto together = alone;
    together.coefficient = coefficient;
    verdict const result{
        is_agreed, is_finite, together, alone, is_agreed ? norm : 0, is_agreed ? coefficient : 1};
    if (is_agreed)
      go_on(is_finite, norm);
    else
      ++updates_;
    return result;
  }

 private:
  void go_on(bool is_finite, double norm) {
    auto const scale_before = scale_;
    if (is_finite) {
      ++updates_;
      if (++finite_ == options_->scaling.growth_interval) {
        scale_ = std::min(options_->scaling.largest, scale_ * 2);
        finite_ = 0;
      }
    } else {
      scale_ = std::max(options_->scaling.smallest, scale_ / 2);
      finite_ = 0;
    }
    auto const& agreement = options_->agreement;
    bool const is_far =
        is_finite && norm < agreement.share * options_->clip && scale_ == scale_before;
    due_ = steps_ + (is_far ? agreement.every - 1 : 0);
  }

  training_options const* options_;
  double scale_;
  std::int64_t updates_ = 0;
  std::int64_t finite_ = 0;  // since the scale changed
  int due_ = 0;    // counted from 0, the number of optimizer steps at which ranks agree again
  int steps_ = 0;  // of the optimizer, skipped ones, too
};

}  // namespace zbpp::test
