// SPDX-License-Identifier: Apache-2.0
//
// Training as one process would do it: the rules of optimizer steps, written out apart from those
// of the library, and a plain loop over pipelines that follows them. What the passes compute is up
// to the networks, see checked_model.hpp, tensor_model.hpp and test_experts.cpp.
#pragma once

#include <zbpp/optim/layer.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/step_result.hpp>
#include <zbpp/runtime/training.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace zbpp::test::checked {

/// What a training gives, to be compared to the bit.
struct history {
  std::vector<std::vector<double>> losses;  // by step
  std::vector<double> norms;
  std::vector<double> coefficients;
  std::vector<double> scales;
  std::vector<std::uint32_t> bits;

  /// Takes in what a step gave.
  void add(step_result const& step) {
    losses.push_back(step.losses);
    norms.push_back(step.update.norm);
    coefficients.push_back(step.update.coefficient);
    scales.push_back(step.update.loss_scale);
  }
  /// Forgets what steps without agreement do not report.
  void forget_updates() {
    norms.clear();
    coefficients.clear();
    scales.clear();
  }

  friend bool operator==(history const& a, history const& b) {
    auto const same = [](std::vector<double> const& x, std::vector<double> const& y) {
      return x.size() == y.size() &&
             std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
    };
    bool const losses_same =
        std::equal(a.losses.begin(), a.losses.end(), b.losses.begin(), b.losses.end(), same);
    return losses_same && same(a.norms, b.norms) && same(a.coefficients, b.coefficients) &&
           same(a.scales, b.scales) && a.bits == b.bits;
  }
};

/// @return what differs first, or nothing
[[nodiscard]] inline std::string difference(history const& a, history const& b) {
  auto const first = [](std::vector<double> const& x, std::vector<double> const& y) {
    std::size_t i = 0;
    while (i < x.size() && i < y.size() && std::memcmp(&x[i], &y[i], sizeof(double)) == 0) ++i;
    return i;
  };
  auto const tell = [](char const* quantity, std::size_t i, double x, double y) {
    return std::string(quantity) + " of step " + std::to_string(i) + ": " + std::to_string(x) +
           " and " + std::to_string(y);
  };
  if (a == b) return "";
  if (a.losses.size() != b.losses.size()) return "numbers of steps";
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    if (auto const k = first(a.losses[i], b.losses[i]); k < a.losses[i].size())
      return tell("losses", i, a.losses[i][k], b.losses[i][k]);
    for (auto const& [name, x, y] :
         {std::tuple("norms", &a.norms, &b.norms),
          std::tuple("coefficients", &a.coefficients, &b.coefficients),
          std::tuple("scales", &a.scales, &b.scales)})
      if (std::memcmp(&(*x)[i], &(*y)[i], sizeof(double)) != 0)
        return tell(name, i, (*x)[i], (*y)[i]);
  }
  return "weights or moments";
}

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

/// @return numbers, bit by bit
[[nodiscard]] inline std::vector<std::uint32_t> bits_of(std::vector<float> const& numbers) {
  std::vector<std::uint32_t> bits(numbers.size());
  std::memcpy(bits.data(), numbers.data(), numbers.size() * sizeof(float));
  return bits;
}

/// Gives all parts their sum, added up in their order.
inline void give_sum(std::vector<std::span<float>> const& parts) {
  if (parts.empty()) return;
  std::vector<float> sum(parts.front().begin(), parts.front().end());
  for (auto const part : std::span(parts).subspan(1))
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  for (auto const part : parts) std::ranges::copy(sum, part.begin());
}

/// What the plain loop sees of a stage.
struct plain_stage {
  std::vector<optim::layer> layers;
  zbpp::optimizer* optimizer;  ///< null where it has none
};
using plain_pipeline = std::vector<plain_stage>;

/// Trains the pipelines of a grid as one process would.
/// @param all      by replica and member of a tensor group
/// @param at_once  stages that do not wait for the norm
/// @param run      called with the number of a step and its loss scale: runs all passes, and gives
///                 the losses of each replica
/// @return what each replica gives, but for the bits
template <class Run>
[[nodiscard]] std::vector<history> train_plainly(
    std::vector<std::vector<plain_pipeline>> const& all,
    int steps,
    training_options const& options,
    std::vector<int> const& at_once,
    Run run) {
  auto const& first = all.front();  // whose gradients are measured, as all replicas have the same
  auto const stages = first.front().size();
  arena memory;
  pass_context const ctx(memory);
  history common;
  std::vector<history> results(all.size());
  step_rules rules(options);
  for (int step = 0; step < steps; ++step) {
    common.scales.push_back(rules.scale());
    auto const losses = run(step, rules.scale());
    for (std::size_t n = 0; n < all.size(); ++n) results[n].losses.push_back(losses[n]);
    if (!rules.is_due(step)) {
      common.norms.push_back(0);
      common.coefficients.push_back(1);
      continue;
    }
    for (std::size_t t = 0; t < first.size(); ++t)
      for (std::size_t s = 0; s < stages; ++s)
        for (std::size_t k = 0; k < first[t][s].layers.size(); ++k) {
          std::vector<std::span<float>> parts;
          for (auto const& replica : all) parts.push_back(replica[t][s].layers[k].gradients);
          give_sum(parts);
        }
    for (auto const& replica : all)
      for (auto const& own : replica) {
        std::vector<std::span<float>> tied;
        for (auto const& stage : own)
          for (auto const& layer : stage.layers)
            if (layer.is_tied) tied.push_back(layer.gradients);
        give_sum(tied);
      }
    // Of a layer in parts all members count, in their order, of one that is replicated the first.
    double squares = 0;
    bool has_tied = false;
    std::vector<bool> is_finite(stages, true);
    for (std::size_t s = 0; s < stages; ++s) {
      if (first[0][s].optimizer == nullptr) continue;
      auto const& layers = first[0][s].layers;
      std::vector<std::vector<gradient_state>> states;  // by member
      for (auto const& own : first)
        own[s].optimizer->measure(states.emplace_back(layers.size()), ctx);
      for (std::size_t k = 0; k < layers.size(); ++k) {
        double of_layer = 0;
        for (std::size_t t = 0; t < states.size(); ++t) {
          auto const& state = states[t][k];
          if (!state.is_finite) is_finite[s] = false;
          if (!state.is_finite) of_layer = std::numeric_limits<double>::infinity();
          if (!layers[k].is_replicated || t == 0) of_layer += state.sum_of_squares;
        }
        if (layers[k].is_tied && std::exchange(has_tied, true)) continue;
        squares += std::isnan(of_layer) ? std::numeric_limits<double>::infinity() : of_layer;
      }
    }
    auto const found = rules.judge(squares);
    common.norms.push_back(found.norm);
    common.coefficients.push_back(found.coefficient);
    for (auto const& replica : all)
      for (auto const& own : replica)
        for (std::size_t s = 0; s < stages; ++s) {
          auto* const optimizer = own[s].optimizer;
          if (optimizer == nullptr) continue;
          bool const is_alone =
              !found.is_agreed || std::ranges::find(at_once, static_cast<int>(s)) != at_once.end();
          if (is_alone ? is_finite[s] : found.is_finite)
            optimizer->step(is_alone ? found.alone : found.together, ctx);
          else
            optimizer->skip(ctx);
        }
  }
  for (auto& result : results) {
    result.norms = common.norms;
    result.coefficients = common.coefficients;
    result.scales = common.scales;
  }
  return results;
}

}  // namespace zbpp::test::checked
