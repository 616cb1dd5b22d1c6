// SPDX-License-Identifier: Apache-2.0
//
// How parameters become layers, and how gradients of tied ones are summed.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/torch/parameters.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>

namespace zbpp::torch {

namespace detail {

/// Finds the memory of a parameter.
class tensor_source final : public optim::layer_source {
 public:
  /// @param name  what errors call it
  /// @param tied  all uses of the same parameter, if it is tied
  tensor_source(at::Tensor parameter, std::string name, tensors tied)
      : parameter_(std::move(parameter)),
        name_(std::move(name)),
        tied_(std::move(tied)),
        count_(parameter_.numel()) {}

  [[nodiscard]] at::Tensor const& parameter() const noexcept { return parameter_; }

  bool locate(optim::layer& found) override {
    for (auto const& each : tied_)
      if (each.requires_grad() != parameter_.requires_grad())
        refuse("is frozen in one of its uses, and trained in another; freeze all of them, or none");
    if (!parameter_.requires_grad()) {
      if (parameter_.grad().defined()) parameter_.mutable_grad().reset();
      return false;
    }
    locate_weights(found);
    auto& gradient = parameter_.mutable_grad();
    if (!gradient.defined()) {
      gradient = at::zeros_like(parameter_.detach());
    } else if (
        gradient.layout() != at::kStrided || gradient.scalar_type() != at::kFloat ||
        !gradient.device().is_cpu() || gradient.numel() != count_) {
      refuse(
          "has a grad that is " + text_of(gradient) +
          "; give it one of 32-bit floats on the host, dense and of its size");
    } else if (!gradient.is_contiguous()) {
      gradient = gradient.contiguous();
    }
    found.gradients = span_of(gradient);
    return true;
  }

  void locate_weights(optim::layer& found) const override {
    if (!is_right(parameter_))
      refuse(
          "is not a contiguous tensor of 32-bit floats on the host, but " + text_of(parameter_) +
          "; step it by an optimizer of LibTorch instead");
    if (!parameter_.is_leaf())
      refuse("is no leaf, so that backward gives it no grad; make its layer of the leaf");
    if (parameter_.numel() != count_)
      refuse(
          zbpp::detail::joined("had ") + count_ + " weights when its layer was made, and is " +
          text_of(parameter_) + " now; make the stage anew");
    found.weights = span_of(parameter_);
  }

  void hold_gradients() override { held_ = std::exchange(parameter_.mutable_grad(), at::Tensor()); }

  void return_gradients(bool was_undone) override {
    auto& gradient = parameter_.mutable_grad();
    if (was_undone || !gradient.defined()) gradient = std::move(held_);
    held_.reset();
  }

  [[nodiscard]] static bool is_right(at::Tensor const& t) {
    return t.layout() == at::kStrided && t.scalar_type() == at::kFloat && t.device().is_cpu() &&
           t.is_contiguous();
  }

 private:
  [[noreturn]] void refuse(std::string const& text) const {
    throw error(errc::bad_argument, name_ + ' ' + text);
  }
  [[nodiscard]] static std::string text_of(at::Tensor const& t) {
    std::ostringstream text;
    text << t.toString() << " of " << t.sizes();
    return text.str();
  }
  [[nodiscard]] std::span<float> span_of(at::Tensor const& t) const {
    return {t.data_ptr<float>(), static_cast<std::size_t>(count_)};
  }

  at::Tensor parameter_;
  std::string name_;
  tensors tied_;
  std::int64_t count_;
  at::Tensor held_;  // from an early step to its validation
};

/// Makes the layer of a parameter.
[[nodiscard]] inline optim::layer layer_of(
    at::Tensor const& parameter, std::string name, tensors const& tied) {
  bool const is_tied =
      std::ranges::any_of(tied, [&](auto const& t) { return parameter.is_same(t); });
  auto const source =
      std::make_shared<tensor_source>(parameter, std::move(name), is_tied ? tied : tensors());
  optim::layer made{{}, {}, is_tied, parameter.dim() > 1, source};
  // One that is frozen may be of any type, for now.
  if (!source->locate(made) && tensor_source::is_right(parameter)) source->locate_weights(made);
  return made;
}

}  // namespace detail

inline std::vector<optim::layer> layers_of(tensors const& parameters, tensors const& tied) {
  std::vector<optim::layer> layers;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].defined())
      layers.push_back(detail::layer_of(parameters[i], "parameter " + std::to_string(i), tied));
  return layers;
}

inline std::vector<optim::layer> layers_of(
    std::vector<named_tensor> const& parameters, tensors const& tied) {
  std::vector<optim::layer> layers;
  for (auto const& each : parameters)
    if (each.value.defined())
      layers.push_back(detail::layer_of(each.value, "parameter '" + each.name + "'", tied));
  return layers;
}

inline tied_parameter::tied_parameter(tensors leaves) : leaves_(std::move(leaves)) {
  zbpp::detail::require(!leaves_.empty(), "a tied_parameter has a leaf for each use; it got none");
  c10::AutoGradMode const off(false);
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    auto const& each = leaves_[i];
    auto const refuse = [i](char const* text) {
      throw error(errc::bad_argument) + "leaf " + i + " of a tied_parameter " + text;
    };
    if (!each.defined() || !each.is_leaf() || !each.requires_grad())
      refuse("is no leaf that is trained; make it with tied_parameter::leaf");
    if (i == 0) continue;
    auto const& first = leaves_.front();
    if (each.sizes() != first.sizes() || each.scalar_type() != first.scalar_type())
      refuse("has another type or other sizes than the first; all are the same parameter");
    for (std::size_t k = 0; k < i; ++k)
      if (each.is_alias_of(leaves_[k]))
        refuse("has the memory of another one; make it with tied_parameter::leaf");
    each.copy_(first);
  }
}

inline at::Tensor tied_parameter::leaf(at::Tensor const& parameter) {
  return parameter.detach().clone().requires_grad_();
}

inline void tied_parameter::sum_gradients() const {
  c10::AutoGradMode const off(false);
  at::Tensor sum;
  for (auto const& each : leaves_) {
    if (!each.grad().defined()) continue;
    if (sum.defined())
      sum.add_(each.grad().to(sum.device()));
    else
      sum = each.grad().clone();
  }
  if (!sum.defined()) return;
  for (auto const& each : leaves_) {
    if (each.grad().defined())
      each.mutable_grad().copy_(sum);
    else
      each.mutable_grad() = sum.to(each.device(), each.scalar_type(), false, /*copy=*/true);
  }
}

inline std::function<void(std::span<int const>)> intra_op_threads(int count) {
  zbpp::detail::require(count >= 1, "intra_op_threads takes a number of threads from 1");
  return [count](std::span<int const>) { at::set_num_threads(count); };
}

}  // namespace zbpp::torch
