// SPDX-License-Identifier: Apache-2.0
//
// What a sequence of layers gives of them.
#pragma once

#include <zbpp/torch/layer.hpp>

namespace zbpp::torch {

inline std::vector<named_tensor> layer::parameters() const {
  std::vector<named_tensor> all;
  for (auto* const each : modules_) detail::append_named(all, each->named_parameters());
  for (auto const& each : parameters_) all.push_back({std::to_string(all.size()), each});
  return all;
}

inline std::vector<named_tensor> layer::buffers() const {
  std::vector<named_tensor> all;
  for (auto* const each : modules_) detail::append_named(all, each->named_buffers());
  return all;
}

inline module_list layer_sequence::modules() const {
  module_list all;
  for (auto const& each : layers_)
    all.insert(all.end(), each.modules().begin(), each.modules().end());
  return all;
}

inline tensors layer_sequence::parameters() const {
  tensors all;
  for (auto const& each : layers_)
    for (auto& parameter : each.parameters()) all.push_back(std::move(parameter.value));
  return all;
}

inline std::vector<named_tensor> layer_sequence::entries() const {
  std::vector<named_tensor> all;
  std::vector<named_tensor> buffers;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto const prefix = names_[i] + '.';
    for (auto& each : layers_[i].parameters())
      all.push_back({prefix + each.name, std::move(each.value)});
    for (auto& each : layers_[i].buffers())
      buffers.push_back({prefix + each.name, std::move(each.value)});
  }
  for (auto& each : buffers) all.push_back(std::move(each));
  return all;
}

inline layer_sequence layer_sequence::part(int first, int end) const {
  layer_sequence made;
  made.layers_.assign(layers_.begin() + first, layers_.begin() + end);
  made.names_.assign(names_.begin() + first, names_.begin() + end);
  return made;
}

}  // namespace zbpp::torch
