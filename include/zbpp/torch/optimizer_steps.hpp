// SPDX-License-Identifier: Apache-2.0
//
// Optimizers of LibTorch as optimizers that ranks agree on: clipped, with loss scales, accumulated,
// and validated afterwards.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/torch/detail/libtorch.hpp>
#include <zbpp/torch/optimizer_state.hpp>
#include <zbpp/torch/tensors.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::optim {
class LBFGS;
}

namespace zbpp::torch {

/// Says whose learning rate an optimizer of LibTorch steps by.
enum class rate_from : std::uint8_t {
  /// `training_options::learning_rate`, written into the options of each group of parameters before
  /// each step; what stood there does not count.
  options,
  /// The options of its groups, as the trainer sets them; `training_options::learning_rate` does
  /// not count, and `update_report::learning_rate` says nothing of the step.
  optimizer,
};

namespace detail {

/// What an early step of a parameter may have to bring back.
struct kept_parameter {
  bool is_stepped = false;  ///< an optimizer leaves alone what has no gradient
  at::Tensor weights;
  at::Tensor gradient;  ///< itself, while it is held
  bool has_state = false;
  std::vector<std::int64_t> numbers;  ///< of the state
  tensors fields;                     ///< of the state, each undefined where it was
};

/// Writes a tensor into the memory of another one, if that fits, or into memory of its own.
void keep(at::Tensor& kept, at::Tensor const& value);
/// @return the state of a gradient of any type, with the bits of `optim` where it is one of floats
[[nodiscard]] gradient_state state_of_gradient(at::Tensor const& gradient);

}  // namespace detail

/// Steps by an optimizer of LibTorch.
///
/// A final step is `step()` and `zero_grad()` of the optimizer, with gradients that were multiplied
/// by `step_settings::factor()`; so weights have the bits of a plain loop. An early one keeps the
/// weights, and what the optimizer keeps for them, in memory of its own: for Adam 12 bytes for each
/// weight, and 4 more with a loss scale. From then to the validation the parameters have no `grad`.
/// A parameter without `requires_grad` in the step is not stepped, and loses its `grad`.
///
/// Parameters may be of any type and on any device of LibTorch. The optimizer must not change
/// gradients. LBFGS is refused, because it computes the loss several times in a step.
/// @tparam Optimizer  one with a `param_state`: Adam, AdamW, SGD, RMSprop, Adagrad, or your own
template <class Optimizer>
class optimizer_steps : public zbpp::optimizer {
  static_assert(
      !std::same_as<Optimizer, ::torch::optim::LBFGS>,
      "torch::optim::LBFGS computes the loss several times in a step, which a pipeline cannot; "
      "take another optimizer");
  static_assert(
      requires { typename param_state<Optimizer>::type; },
      "specialize zbpp::torch::param_state for this type of optimizer, so that its state can be "
      "brought back; a base class does not say what the state is");

 public:
  /// @param tied  parameters that stages share: `tied_parameter::leaves()`
  /// @throws error (bad_argument) when the pointer is null, or a tied parameter is none of 32-bit
  ///         floats, differs in size from others, or in rate from `training_options::learning_rate`
  optimizer_steps(std::shared_ptr<Optimizer> given, rate_from rate, tensors tied = {})
      : optimizer_(std::move(given)), rate_(rate), tied_(std::move(tied)) {
    zbpp::detail::require(
        optimizer_ != nullptr, "optimizer_steps got a null pointer to an optimizer");
    for_each([&](at::Tensor const& parameter) {
      auto& made = parameters_.emplace_back();
      made.value = parameter;
      made.entry = detail::state_key<key>(parameter);
      for (auto const& each : tied_) made.is_tied = made.is_tied || each.is_same(parameter);
      if (!made.is_tied) return;
      zbpp::detail::require(
          parameter.scalar_type() == at::kFloat,
          "a tied parameter has another type than 32-bit floats, which ranks cannot sum");
      zbpp::detail::require(
          tied_weights_ == 0 || tied_weights_ == parameter.numel(),
          "tied parameters of an optimizer differ in size; all are the same parameter");
      tied_weights_ = parameter.numel();
    });
    zbpp::detail::require(
        tied_weights_ == 0 || rate_ == rate_from::options,
        "an optimizer with tied parameters has a rate of its own, which ranks do not compare; give "
        "it rate_from::options, so that all uses of a parameter step alike");
  }

  [[nodiscard]] Optimizer& libtorch() const noexcept { return *optimizer_; }
  [[nodiscard]] int layers() const noexcept override {
    return static_cast<int>(parameters_.size());
  }
  /// Writes the states of the gradients.
  /// @throws error (bad_argument) when parameters were added to the optimizer or replaced, or tied
  ///         ones are frozen in some uses; all functions that follow do
  void measure(std::span<gradient_state> states, pass_context) override {
    check();
    for (std::size_t i = 0; i < states.size(); ++i) {
      auto const& value = parameters_[i].value;
      if (value.requires_grad() && value.grad().defined())
        states[i] = detail::state_of_gradient(value.grad());
    }
  }
  /// Takes the gradients away until `step`, `skip` or `undo`.
  bool hold(pass_context) override {
    check();
    drop_frozen();
    for (auto& each : parameters_) each.kept.gradient = each.value.grad();
    hold_gradients();
    return true;
  }
  /// Takes a step; unless it is final, keeps what `undo` needs.
  void step(step_settings const& settings, pass_context) override {
    check();
    c10::AutoGradMode const off(false);
    return_gradients();
    drop_frozen();
    if (rate_ == rate_from::options)
      for (auto& group : optimizer_->param_groups()) group.options().set_lr(settings.learning_rate);
    auto const factor = settings.factor();
    if (settings.is_final) {
      if (factor != 1)
        for (auto const& each : parameters_)
          if (each.value.grad().defined()) each.value.mutable_grad().mul_(factor);
      optimizer_->step();
      optimizer_->zero_grad();
      return;
    }
    for (auto& each : parameters_) keep(each);
    is_early_ = is_held_ = true;  // from now on, so that a step that fails can be taken back
    if (factor != 1)
      for (auto& each : parameters_) scale(each, factor);
    optimizer_->step();
    hold_gradients();
  }
  /// Makes the last step final.
  void commit(pass_context) override {
    is_early_ = false;
    return_gradients();
    optimizer_->zero_grad();
  }
  /// Takes the last step back.
  void undo(pass_context) override {
    c10::AutoGradMode const off(false);
    return_gradients();
    if (!std::exchange(is_early_, false)) return;  // the step failed before it changed anything
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      auto const& [value, placement, is_tied, kept, scaled] = parameters_[i];
      if (!kept.is_stepped) continue;
      if (value.sizes() != kept.weights.sizes())
        refuse(i, "changed its sizes between a step and the validation of that step");
      value.copy_(kept.weights);
      bring_back_state(parameters_[i]);
    }
  }
  /// Sets gradients to 0, as `zero_grad()` of the optimizer does.
  void skip(pass_context) override {
    check();
    return_gradients();
    drop_frozen();
    optimizer_->zero_grad();
  }
  [[nodiscard]] bool is_tied(int layer) const noexcept override {
    return parameters_[static_cast<std::size_t>(layer)].is_tied;
  }
  [[nodiscard]] std::int64_t tied_weights() const noexcept override { return tied_weights_; }
  /// Copies the gradients of the tied parameters, one after another.
  void read_tied(std::span<float> copy, pass_context) override {
    check();
    c10::AutoGradMode const off(false);
    auto* to = copy.data();
    for (auto const& each : parameters_) {
      if (!each.is_tied) continue;
      auto const place = at::from_blob(to, each.value.sizes(), at::kFloat);
      if (each.value.grad().defined())
        place.copy_(each.value.grad());
      else
        place.zero_();
      to += tied_weights_;
    }
  }
  /// Replaces the gradients of each tied parameter that is trained.
  void write_tied(std::span<float const> sum, pass_context) override {
    check();
    c10::AutoGradMode const off(false);
    for (auto const& each : parameters_) {
      if (!each.is_tied || !each.value.requires_grad()) continue;
      auto& gradient = each.value.mutable_grad();
      if (!gradient.defined()) gradient = at::empty_like(each.value.detach());
      gradient.copy_(at::from_blob(const_cast<float*>(sum.data()), each.value.sizes(), at::kFloat));
    }
  }
  [[nodiscard]] std::optional<std::int64_t> layer_size(int layer) const override {
    return parameters_[static_cast<std::size_t>(layer)].value.numel();
  }
  /// Copies the weights of a parameter, as 32-bit floats.
  void read_weights(int layer, std::span<float> copy, pass_context) override {
    c10::AutoGradMode const off(false);
    auto const& weights = parameters_[static_cast<std::size_t>(layer)].value;
    at::from_blob(copy.data(), weights.sizes(), at::kFloat).copy_(weights);
  }
  /// @return numbers of `read_gradients`: all gradients, and for each parameter whether it has one
  [[nodiscard]] std::optional<std::int64_t> gradient_count() const override {
    std::int64_t count = layers();
    for (auto const& each : parameters_) count += each.value.numel();
    return count;
  }
  /// Copies the gradients of all parameters, as 32-bit floats.
  void read_gradients(std::span<float> copy, pass_context) override {
    check();
    drop_frozen();
    c10::AutoGradMode const off(false);
    auto* to = copy.data();
    for (auto const& each : parameters_) {
      auto const& gradient = each.value.grad();
      *to++ = gradient.defined() ? 1.0F : 0.0F;
      auto const place = at::from_blob(to, each.value.sizes(), at::kFloat);
      if (gradient.defined())
        place.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
      else
        place.zero_();
      to += each.value.numel();
    }
  }
  /// Gives each parameter that is trained the sum, if a replica has a gradient of it.
  void write_gradients(std::span<float const> sums, pass_context) override {
    check();
    c10::AutoGradMode const off(false);
    auto const* from = sums.data();
    for (auto const& each : parameters_) {
      bool const is_there = *from++ > 0;
      auto& gradient = each.value.mutable_grad();
      if (!is_there || !each.value.requires_grad()) {
        gradient.reset();
      } else {
        if (!gradient.defined() || gradient.is_sparse())
          gradient = at::empty_like(each.value.detach());
        gradient.copy_(at::from_blob(const_cast<float*>(from), each.value.sizes(), at::kFloat));
      }
      from += each.value.numel();
    }
  }

 private:
  using key = typename std::remove_cvref_t<decltype(std::declval<Optimizer&>().state())>::key_type;
  using fields = param_state<Optimizer>;
  using state = typename fields::type;

  struct stepped {
    at::Tensor value;
    key entry;
    bool is_tied = false;
    detail::kept_parameter kept;
    at::Tensor scaled;  // gradient of an early step with a loss scale
  };

  template <class Call>
  void for_each(Call call) const {
    for (auto const& group : optimizer_->param_groups())
      for (auto const& each : group.params()) call(each);
  }

  [[noreturn]] static void refuse(std::size_t index, std::string const& text) {
    throw error(errc::bad_argument) + "parameter " + index + ' ' + text;
  }

  void check() const {
    std::size_t count = 0;
    for_each([&](at::Tensor const& each) {
      if (count >= parameters_.size() || !parameters_[count].value.is_same(each))
        refuse(
            count, "of an optimizer was added or replaced after its stage was made; make it anew");
      ++count;
    });
    if (count < parameters_.size())
      refuse(count, "of an optimizer was removed after its stage was made; make it anew");
    if (tied_weights_ == 0) return;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      for (auto const& each : tied_)
        if (parameters_[i].is_tied && each.requires_grad() != parameters_[i].value.requires_grad())
          refuse(
              i,
              "is frozen in one of its uses, and trained in another; freeze all of them, or none");
  }

  void drop_frozen() const {
    for (auto const& each : parameters_)
      if (!each.value.requires_grad() && each.value.grad().defined())
        each.value.mutable_grad().reset();
  }

  // What is done to gradients that are not there belongs to a step that does not count yet.
  void hold_gradients() {
    is_held_ = true;
    for (auto const& each : parameters_) each.value.mutable_grad().reset();
  }

  void return_gradients() {
    if (!std::exchange(is_held_, false)) return;
    for (auto& each : parameters_)
      each.value.mutable_grad() = std::exchange(each.kept.gradient, at::Tensor());
  }

  void keep(stepped& entry) {
    auto& kept = entry.kept;
    kept.gradient = entry.value.grad();
    kept.is_stepped = kept.gradient.defined();
    if (!kept.is_stepped) return;
    detail::keep(kept.weights, entry.value.detach());
    auto const found = optimizer_->state().find(entry.entry);
    kept.has_state = found != optimizer_->state().end();
    if (!kept.has_state) return;
    std::size_t numbers = 0;
    std::size_t count = 0;
    fields::visit(static_cast<state&>(*found->second), [&](char const*, auto& value) {
      if constexpr (detail::is_number<decltype(value)>) {
        if (numbers == kept.numbers.size()) kept.numbers.emplace_back();
        kept.numbers[numbers++] = value;
      } else {
        if (count == kept.fields.size()) kept.fields.emplace_back();
        detail::keep(kept.fields[count++], value);
      }
    });
  }

  void bring_back_state(stepped& entry) {
    auto& all = optimizer_->state();
    auto const& kept = entry.kept;
    if (!kept.has_state) {
      all.erase(entry.entry);
      return;
    }
    if (all.find(entry.entry) == all.end()) all[entry.entry] = std::make_unique<state>();
    std::size_t numbers = 0;
    std::size_t count = 0;
    fields::visit(static_cast<state&>(*all[entry.entry]), [&](char const*, auto& value) {
      if constexpr (detail::is_number<decltype(value)>)
        value = kept.numbers[numbers++];
      else
        detail::keep(value, kept.fields[count++]);
    });
  }

  static void scale(stepped& entry, float factor) {
    auto const& gradient = entry.kept.gradient;
    if (!gradient.defined()) return;
    detail::keep(entry.scaled, gradient);
    entry.value.mutable_grad() = entry.scaled.mul_(factor);
  }

  std::shared_ptr<Optimizer> optimizer_;
  rate_from rate_;
  tensors tied_;
  std::int64_t tied_weights_ = 0;
  std::vector<stepped> parameters_;
  bool is_early_ = false;
  bool is_held_ = false;
};

}  // namespace zbpp::torch

#include <zbpp/torch/impl/optimizer_steps.ipp>
