// SPDX-License-Identifier: Apache-2.0
//
// What optimizers keep for each parameter between two steps, by name, for checkpoints.
#pragma once

#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/torch/detail/libtorch.hpp>

#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <sstream>
#include <type_traits>

// Declared here, so that who does not use them need not wait for their headers.
namespace torch::optim {
class Adagrad;
struct AdagradParamState;
class Adam;
struct AdamParamState;
class AdamW;
struct AdamWParamState;
class RMSprop;
struct RMSpropParamState;
class SGD;
struct SGDParamState;
}  // namespace torch::optim

namespace zbpp::torch {

/// Lists the fields of what an optimizer of LibTorch keeps for a parameter. `type` is that state,
/// and `visit(state, field)` calls `field(name, value)` for each of its numbers (`std::int64_t&`)
/// and of its tensors (`at::Tensor&`), which are undefined or have the sizes and type of the
/// parameter. Specialize it for an optimizer of your own.
template <class Optimizer>
struct param_state;

/// Lists the fields of Adam's state.
template <>
struct param_state<::torch::optim::Adam> {
  using type = ::torch::optim::AdamParamState;

  /// Calls `field(name, value)` for each field.
  template <class State, class Field>
  static void visit(State& state, Field field) {
    field("step", state.step());
    field("exp_avg", state.exp_avg());
    field("exp_avg_sq", state.exp_avg_sq());
    field("max_exp_avg_sq", state.max_exp_avg_sq());
  }
};

/// Lists the fields of AdamW's state, which are those of Adam's.
template <>
struct param_state<::torch::optim::AdamW> : param_state<::torch::optim::Adam> {
  using type = ::torch::optim::AdamWParamState;
};

/// Lists the fields of the state of stochastic gradient descent.
template <>
struct param_state<::torch::optim::SGD> {
  using type = ::torch::optim::SGDParamState;

  /// Calls `field(name, value)` for each field.
  template <class State, class Field>
  static void visit(State& state, Field field) {
    field("momentum_buffer", state.momentum_buffer());
  }
};

/// Lists the fields of RMSprop's state.
template <>
struct param_state<::torch::optim::RMSprop> {
  using type = ::torch::optim::RMSpropParamState;

  /// Calls `field(name, value)` for each field.
  template <class State, class Field>
  static void visit(State& state, Field field) {
    field("step", state.step());
    field("square_avg", state.square_avg());
    field("momentum_buffer", state.momentum_buffer());
    field("grad_avg", state.grad_avg());
  }
};

/// Lists the fields of Adagrad's state.
template <>
struct param_state<::torch::optim::Adagrad> {
  using type = ::torch::optim::AdagradParamState;

  /// Calls `field(name, value)` for each field.
  template <class State, class Field>
  static void visit(State& state, Field field) {
    field("step", state.step());
    field("sum", state.sum());
  }
};

namespace detail {

/// Names numbers that an optimizer of zbpp keeps, one for each weight, layer after layer.
struct named_moment {
  char const* name;
  std::span<float> values;
};

[[nodiscard]] inline std::array<named_moment, 2> moments_of(optim::adamw& optimizer) {
  return {{{"mean", optimizer.mean()}, {"mean_square", optimizer.mean_square()}}};
}
[[nodiscard]] inline std::array<named_moment, 1> moments_of(optim::sgd& optimizer) {
  return {{{"momentum", optimizer.momentum()}}};
}

/// Models an optimizer of zbpp whose moments are known.
template <class Optimizer>
concept has_moments = requires(Optimizer& o) { moments_of(o); };

/// Models what steps by an optimizer of LibTorch, such as `optimizer_steps`.
template <class Steps>
concept holds_optimizer = requires(Steps& s) { s.libtorch().state(); };

/// Tells the numbers among the fields of a state from its tensors; there is nothing else.
template <class Value>
inline constexpr bool is_number = [] {
  using field = std::remove_cvref_t<Value>;
  static_assert(
      std::same_as<field, std::int64_t> || std::same_as<field, at::Tensor>,
      "param_state visits numbers of type std::int64_t and tensors");
  return std::same_as<field, std::int64_t>;
}();

template <class Key>
[[nodiscard]] Key state_key(at::Tensor const& parameter) {
  if constexpr (std::is_pointer_v<Key>) {
    return parameter.unsafeGetTensorImpl();
  } else {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  }
}

}  // namespace detail

/// Models an optimizer whose state a checkpoint can have: `optim::adamw`, `optim::sgd`, one of
/// LibTorch with a `param_state`, or `optimizer_steps` of such a one.
template <class Optimizer>
concept saved_optimizer = detail::has_moments<Optimizer> || detail::holds_optimizer<Optimizer> ||
                          requires { typename param_state<Optimizer>::type; };

}  // namespace zbpp::torch
