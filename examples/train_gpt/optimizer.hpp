// SPDX-License-Identifier: Apache-2.0
//
// SGD with momentum and Adam, which zbpp has, with the learning rate of each step. Each parameter
// is stepped by itself, so that a model cut in chunks takes the same step as the whole one, bit for
// bit.
#pragma once

#include "parameters.hpp"
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/runtime/optimizer.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>

namespace gpt {

/// Names a rule of steps.
enum class optimizer_kind { sgd, adam };

/// @return a learning rate that suits the rule. Own choice: the best of a few for the default
/// model.
[[nodiscard]] constexpr float default_rate(optimizer_kind kind) {
  return kind == optimizer_kind::adam ? 2e-3F : 5e-2F;
}

/// Gives the settings of an optimizer.
struct optimizer_settings {
  optimizer_kind kind = optimizer_kind::adam;
  float learning_rate = default_rate(optimizer_kind::adam);
  std::int64_t steps = 400;   ///< the learning rate falls to a tenth until here
  std::int64_t warm_up = 20;  ///< the learning rate rises until here
  float momentum = 0.9F;      ///< share of the mean gradient that a step keeps
  float mean_square = 0.95F;  ///< share of the mean squared gradient that a step keeps

  /// @return the learning rate of a step, counted from 0
  [[nodiscard]] float rate(std::int64_t step) const {
    auto const rise =
        static_cast<float>(step + 1) / static_cast<float>(std::max<std::int64_t>(warm_up, 1));
    auto const fall =
        static_cast<float>(step) / static_cast<float>(std::max<std::int64_t>(steps, 1));
    return learning_rate * std::min(1.0F, rise) * std::max(0.1F, 1.0F - 0.9F * fall);
  }
};

/// Steps the parameters of a chunk.
class optimizer {
 public:
  /// @param of  outlives the object, and its arrays stay where they are
  optimizer(optimizer_settings const& settings, parameter_set& of)
      : rule_(std::make_unique<any_rule>(make(settings, of))),
        ref_(std::visit([](auto& rule) { return zbpp::optimizer_ref(rule); }, *rule_)) {}

  /// @return what steps the parameters; `zbpp::optimizer` says how
  [[nodiscard]] zbpp::optimizer_ref& rule() { return ref_; }
  /// @return the mean gradients, one a parameter
  [[nodiscard]] std::span<float> mean() {
    if (auto* const adam = std::get_if<zbpp::optim::adamw>(rule_.get())) return adam->mean();
    return std::get<zbpp::optim::sgd>(*rule_).momentum();
  }
  /// @return the mean squared gradients, one a parameter; none where the rule is SGD
  [[nodiscard]] std::span<float> square() {
    auto* const adam = std::get_if<zbpp::optim::adamw>(rule_.get());
    return adam == nullptr ? std::span<float>() : adam->mean_square();
  }

 private:
  using any_rule = std::variant<zbpp::optim::sgd, zbpp::optim::adamw>;

  [[nodiscard]] static any_rule make(optimizer_settings const& settings, parameter_set& of) {
    if (settings.kind == optimizer_kind::sgd)
      return zbpp::optim::sgd(of.layers(), {.momentum = settings.momentum});
    return zbpp::optim::adamw(
        of.layers(), {.mean = settings.momentum, .mean_square = settings.mean_square});
  }

  std::unique_ptr<any_rule> rule_;  // stays where it is when the object moves
  zbpp::optimizer_ref ref_;
};

}  // namespace gpt
