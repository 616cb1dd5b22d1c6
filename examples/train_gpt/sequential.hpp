// SPDX-License-Identifier: Apache-2.0
//
// The optimizer of the trainer, and the reference: the whole model in one plain loop, microbatch
// after microbatch. It shares the maths with the pipeline and nothing else, so that being identical
// to it says something.
#pragma once

#include "model.hpp"
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace gpt {

/// Steps the parameters of a chunk.
class optimizer {
 public:
  /// @param of  outlives the object, and its arrays stay where they are
  optimizer(optimizer_settings const& settings, parameter_set& of) : rule_(make(settings, of)) {}

  /// @return what steps the parameters
  [[nodiscard]] zbpp::optimizer& rule() { return *rule_; }
  /// @return the mean gradients, one a parameter
  [[nodiscard]] std::span<float> mean() {
    if (auto* const adam = dynamic_cast<zbpp::optim::adamw*>(rule_.get())) return adam->mean();
    return static_cast<zbpp::optim::sgd&>(*rule_).momentum();
  }
  /// @return the mean squared gradients, one a parameter; none where the rule is SGD
  [[nodiscard]] std::span<float> square() {
    auto* const adam = dynamic_cast<zbpp::optim::adamw*>(rule_.get());
    return adam == nullptr ? std::span<float>() : adam->mean_square();
  }

 private:
  [[nodiscard]] static std::unique_ptr<zbpp::optimizer> make(
      optimizer_settings const& settings, parameter_set& of) {
    if (settings.kind == optimizer_kind::sgd)
      return std::make_unique<zbpp::optim::sgd>(
          of.layers(), zbpp::optim::sgd_settings{.momentum = settings.momentum});
    return std::make_unique<zbpp::optim::adamw>(
        of.layers(),
        zbpp::optim::adamw_settings{.beta1 = settings.momentum, .beta2 = settings.mean_square});
  }

  std::unique_ptr<zbpp::optimizer> rule_;  // stays where it is when the object moves
};

/// Takes the optimizer steps of a reference, which has the whole model and waits for nobody.
class reference_steps {
 public:
  /// @param first_shares  of the layers, where members of a tensor group divide some: their shares
  ///                      of a layer are measured as one, in the order of the members
  explicit reference_steps(
      optimizer_settings const& how, std::vector<std::size_t> first_shares = {})
      : how_(how), first_shares_(std::move(first_shares)) {}

  /// Takes a step with the gradients that are there, or skips it where they are not finite.
  /// @param rule  of the whole model
  /// @param at    where the model is
  void take(zbpp::optimizer& rule, zbpp::pass_context at) {
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
  void measure(zbpp::optimizer& rule, zbpp::pass_context at) {
    gradients_.assign(static_cast<std::size_t>(rule.layers()), {});
    rule.measure(gradients_, at);
    bool has_tied = false;
    for (int layer = 0; layer < rule.layers(); ++layer)
      if (rule.is_tied(layer) && std::exchange(has_tied, true))
        gradients_[static_cast<std::size_t>(layer)] = {};
    for (std::size_t layer = 0; layer < first_shares_.size(); ++layer) {
      if (first_shares_[layer] == layer) continue;
      auto& first = gradients_[first_shares_[layer]];
      auto const share = std::exchange(gradients_[layer], {});
      first.sum_of_squares += share.sum_of_squares;
      first.is_finite = first.is_finite && share.is_finite;
    }
  }

  optimizer_settings how_;
  std::vector<std::size_t> first_shares_;
  std::vector<zbpp::gradient_state> gradients_;  // by layer
  std::int64_t updates_ = 0;                     // steps that were not skipped
};

/// Runs a step of the whole model without the optimizer: every microbatch to its end, in order. The
/// gradients of each replica's microbatches are added up for themselves, and then over the
/// replicas.
/// @param between  called before each microbatch; what it throws ends the step
/// @return the mean loss, in nats a byte
template <class Between>
double accumulate_gradients(
    chunk& model, training const& how, text const& on, std::int64_t step, Between const& between) {
  auto const array = [](index size) { return std::vector<float>(static_cast<std::size_t>(size)); };
  auto const& size = model.keeps();
  auto until_b = array(size.until_b);
  auto until_w = array(size.until_w);
  auto gradients = array(size.gradients);
  auto scratch = array(size.scratch);
  kept const keep{until_b.data(), until_w.data(), gradients.data()};
  double total = 0.0;
  auto const added = model.parameters().gradients();
  std::vector<float> sums;
  for (int i = 0; i < how.microbatches; ++i) {
    if (how.replicas > 1 && i > 0 && i % how.own_microbatches() == 0) {
      sums.resize(added.size(), 0.0F);
      bool const is_first = i == how.own_microbatches();
      for (std::size_t k = 0; k < sums.size(); ++k)
        sums[k] = is_first ? added[k] : sums[k] + added[k];
      std::ranges::fill(added, 0.0F);
    }
    between();
    batch const of(how.model, on, how.seed, step, i);
    total += model.forward(keep, of, nullptr, scratch.data(), nullptr);
    model.backward_input(keep, of, nullptr, scratch.data(), nullptr);
    model.backward_weight(keep, of, nullptr, scratch.data());
  }
  for (std::size_t k = 0; k < sums.size(); ++k) added[k] = sums[k] + added[k];
  return total / how.microbatches;
}

/// Trains the whole model on one thread.
class sequential_trainer {
 public:
  /// @param on  outlives the trainer
  sequential_trainer(training const& how, text const& on)
      : how_(how),
        text_(&on),
        model_(whole_model(how.model, how.microbatches, how.seed)),
        optimizer_(how.optimizer, model_.parameters()),
        steps_(how.optimizer, model_.parameters().first_shares()) {}

  /// Runs every microbatch, and takes one optimizer step.
  /// @param between  called before each microbatch; what it throws ends the training
  /// @return the mean loss of the step, in nats a byte
  template <class Between>
  double step(Between const& between) {
    auto const loss = accumulate_gradients(model_, how_, *text_, step_, between);
    sum_tied();
    steps_.take(optimizer_.rule(), zbpp::pass_context(memory_));
    ++step_;
    return loss;
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
