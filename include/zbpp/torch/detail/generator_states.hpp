// SPDX-License-Identifier: Apache-2.0
//
// The states of LibTorch's default generators, to be put back.
#pragma once

#include <zbpp/torch/detail/libtorch.hpp>

#include <utility>
#include <vector>

namespace zbpp::torch::detail {

/// Holds the states of the default generators of the CPU and of other devices.
class generator_states {
 public:
  /// Holds none.
  generator_states() = default;
  /// Reads those of the CPU and of the devices of tensors.
  explicit generator_states(std::vector<at::Tensor> const& on) {
    for (auto const& each : on) {
      if (!each.defined() || each.device().is_cpu()) continue;
      auto const& generator = at::globalContext().defaultGenerator(each.device());
      bool is_known = false;
      for (auto const& [known, state] : others_) is_known = is_known || known == generator;
      if (!is_known) others_.emplace_back(generator, at::Tensor());
    }
    read();
  }

  /// Reads the states anew.
  void read();
  /// Gives the generators these states.
  void write() const;

  /// @return whether both are the same states of the same generators
  friend bool operator==(generator_states const& a, generator_states const& b);

 private:
  at::mt19937_data_pod cpu_{};
  // Normal numbers come in pairs; these are left.
  decltype(std::declval<at::CPUGeneratorImpl&>().next_float_normal_sample()) float_sample_;
  decltype(std::declval<at::CPUGeneratorImpl&>().next_double_normal_sample()) double_sample_;
  std::vector<std::pair<at::Generator, at::Tensor>> others_;
};

}  // namespace zbpp::torch::detail

#include <zbpp/torch/impl/generator_states.ipp>
