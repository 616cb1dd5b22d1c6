// SPDX-License-Identifier: Apache-2.0
//
// SGD with momentum and Adam, which zbpp has. Each parameter is stepped by itself, so that a model
// cut in chunks takes the same step as the whole one, bit for bit.
#pragma once

#include "optimizer_settings.hpp"
#include "parameters.hpp"
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/runtime/optimizer.hpp>

#include <memory>
#include <span>
#include <variant>

namespace gpt {

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
