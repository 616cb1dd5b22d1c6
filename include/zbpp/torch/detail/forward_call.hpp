// SPDX-License-Identifier: Apache-2.0
//
// What a stage's module may take and give, and one function of tensors made of whatever it is.
#pragma once

#include <zbpp/torch/tensors.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace zbpp::torch {

namespace detail {

template <class Result>
inline constexpr bool is_of_tensors =
    std::convertible_to<Result, at::Tensor> || std::convertible_to<Result, at::TensorList>;
template <class... Each>
inline constexpr bool is_of_tensors<std::tuple<Each...>> =
    (is_of_tensors<std::remove_cvref_t<Each>> && ...);
template <class First, class Second>
inline constexpr bool is_of_tensors<std::pair<First, Second>> =
    is_of_tensors<std::remove_cvref_t<First>> && is_of_tensors<std::remove_cvref_t<Second>>;
template <class Each, std::size_t Count>
inline constexpr bool is_of_tensors<std::array<Each, Count>> = is_of_tensors<Each>;

}  // namespace detail

/// Models what a stage's module may give: a tensor, `tensors`, or a `std::tuple`, `std::pair` or
/// `std::array` of these, as of an LSTM, whose tensors count in order, nested ones in their place.
template <class Result>
concept stage_outputs = detail::is_of_tensors<std::remove_cvref_t<Result>>;

namespace detail {

template <class Result>
void append_to(tensors& all, Result&& result) {
  if constexpr (std::convertible_to<Result, at::Tensor>)
    all.push_back(std::forward<Result>(result));
  else if constexpr (std::convertible_to<Result, at::TensorList>)
    for (at::TensorList const list = result; auto const& each : list) all.push_back(each);
  else
    std::apply([&](auto&... each) { (append_to(all, each), ...); }, result);
}

template <class Result>
[[nodiscard]] tensors as_list(Result&& result) {
  static_assert(
      stage_outputs<Result>,
      "a stage's module gives an at::Tensor, zbpp::torch::tensors, or a std::tuple, std::pair or "
      "std::array of these, nested or not; put one that gives something else into a callable that "
      "gives one of these");
  if constexpr (std::same_as<std::remove_cvref_t<Result>, tensors>) {
    return std::forward<Result>(result);
  } else {
    tensors all;
    if constexpr (stage_outputs<Result>) append_to(all, std::forward<Result>(result));
    return all;
  }
}

inline constexpr std::size_t most_arguments = 4;

template <std::size_t>
using one_tensor = at::Tensor;
template <class Call, std::size_t... Each>
[[nodiscard]] consteval bool takes_each(std::index_sequence<Each...>) {
  return std::invocable<Call&, one_tensor<Each>...>;
}
template <class Call, std::size_t Count>
concept takes_count = takes_each<Call>(std::make_index_sequence<Count>{});
template <class Call>
concept takes_some =
    takes_count<Call, 1> || takes_count<Call, 2> || takes_count<Call, 3> || takes_count<Call, 4>;

/// Makes a callable of what has a `forward`.
template <class Module>
struct forward_call {
  Module module;

  template <class... Each>
    requires requires(Module& to, Each&&... each) { to->forward(std::forward<Each>(each)...); }
  decltype(auto) operator()(Each&&... each) {
    return module->forward(std::forward<Each>(each)...);
  }
};

template <class Module>
concept has_forward =
    takes_some<forward_call<Module>> || std::invocable<forward_call<Module>&, tensors const&>;
template <class Module>
concept takes_tensors =
    has_forward<Module> || std::invocable<Module&, tensors const&> || takes_some<Module>;

[[noreturn]] void refuse_count(std::array<bool, most_arguments + 1> const& takes, std::size_t got);

template <class Call>
[[nodiscard]] tensors call_with_each(Call& call, tensors const& in) {
  std::array<bool, most_arguments + 1> takes{};
  tensors outputs;
  auto const with = [&]<std::size_t... Each>(std::index_sequence<Each...>) {
    constexpr auto count = sizeof...(Each);
    if constexpr (takes_count<Call, count>) {
      takes[count] = true;
      if (in.size() != count) return false;
      outputs = as_list(call(at::Tensor(in[Each])...));
      return true;
    } else {
      return false;
    }
  };
  if (!with(std::make_index_sequence<1>{}) && !with(std::make_index_sequence<2>{}) &&
      !with(std::make_index_sequence<3>{}) && !with(std::make_index_sequence<4>{}))
    refuse_count(takes, in.size());
  return outputs;
}

/// Makes one function of whatever computes outputs from inputs. A forward that takes anything, as
/// that of `nn::Sequential`, gets tensors one by one; a callable gets all of them where it can.
template <class Module>
[[nodiscard]] std::function<tensors(tensors const&)> forward_of(Module module) {
  if constexpr (takes_some<forward_call<Module>>)
    return [call = forward_call<Module>{std::move(module)}](tensors const& in) mutable {
      return call_with_each(call, in);
    };
  else if constexpr (has_forward<Module>)
    return [module = std::move(module)](tensors const& in) mutable {
      return as_list(module->forward(in));
    };
  else if constexpr (std::invocable<Module&, tensors const&>)
    return [module = std::move(module)](tensors const& in) mutable { return as_list(module(in)); };
  else
    return [module = std::move(module)](tensors const& in) mutable {
      return call_with_each(module, in);
    };
}

}  // namespace detail
}  // namespace zbpp::torch

#include <zbpp/torch/impl/forward_call.ipp>
