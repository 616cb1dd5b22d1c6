// SPDX-License-Identifier: Apache-2.0
//
// How a layer is measured.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/detail/median.hpp>
#include <zbpp/torch/detail/layer_keeper.hpp>
#include <zbpp/torch/measure_layers.hpp>
#include <zbpp/torch/split_backward.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <string>

namespace zbpp::torch {

namespace detail {

/// Times the passes of one layer over some runs.
class pass_times {
 public:
  /// Runs a pass. @return what it gives
  template <class Pass>
  auto run(std::vector<ticks>& times, Pass pass) {
    auto const start = std::chrono::steady_clock::now();
    struct note {
      std::vector<ticks>& times;
      std::chrono::steady_clock::time_point start;
      ~note() {
        auto const took = std::chrono::steady_clock::now() - start;
        times.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
      }
    } const ends{times, start};
    return pass();
  }
  /// Forgets what was measured.
  void clear() { *this = {}; }

  std::vector<ticks> forward, input, weight, both;
};

[[nodiscard]] inline bytes bytes_of(tensors const& all) {
  bytes sum = 0;
  for (auto const& each : all)
    if (each.defined()) sum += static_cast<bytes>(each.nbytes());
  return sum;
}

[[nodiscard]] inline tensors ones_for(tensors const& outputs) {
  tensors made;
  for (auto const& each : outputs)
    made.push_back(
        each.defined() && each.requires_grad() ? at::ones_like(each.detach()) : at::Tensor());
  return made;
}

/// Makes the inputs of a layer as a stage gets them.
[[nodiscard]] inline tensors inputs_like(tensors const& from, std::vector<bool> const& gradients) {
  auto made = copies_of(from);
  for (std::size_t i = 0; i < made.size(); ++i)
    if (i < gradients.size() && gradients[i]) made[i].requires_grad_();
  return made;
}

/// Runs F, B and W of a layer once, and notes what each keeps.
/// @param from  inputs, which become the outputs
inline void measure_bytes(
    layer const& block,
    std::function<at::Tensor(tensors const&)> const* loss,
    edge_tensors& from,
    layer_costs& costs) {
  c10::AutoGradMode const with_graph(true);
  live_memory memory;
  auto inputs = inputs_like(from.values, from.needs_gradient);
  memory.reset_peak();
  auto outputs = block(inputs);
  edge_tensors sent;
  for (auto const& each : outputs)
    sent.needs_gradient.push_back(each.defined() && each.requires_grad());
  if (loss != nullptr) outputs = {(*loss)(outputs)};
  split_backward graph(inputs, detail::defined(outputs));
  auto const peak_of_f = memory.peak();
  auto before = memory.bytes();
  sent.values = copies_of(outputs);
  auto gradients = ones_for(outputs);
  auto const apart = memory.bytes() - before;  // not the layer's
  before = memory.bytes();
  outputs.clear();
  costs.activation = memory.bytes() - apart;
  auto const shipped = before - memory.bytes();  // outputs that nobody but the next stage keeps
  auto const gradient_bytes = bytes_of(gradients);
  memory.reset_peak();
  auto found = graph.backward_input(std::move(gradients));
  auto const peak_of_b = memory.peak() - apart;
  found.clear();
  inputs.clear();
  costs.weight_gradient_input = std::max<bytes>(0, memory.bytes() - apart + gradient_bytes);
  memory.reset_peak();
  auto const before_w = memory.bytes();
  graph.backward_weight();
  auto const extra_of_w = memory.peak() - before_w;
  costs.output_gradient = std::max<bytes>(0, costs.weight_gradient_input - costs.activation);
  costs.workspace = std::max<bytes>(
      {0,
       peak_of_f - costs.activation - shipped,
       peak_of_b - costs.activation - costs.output_gradient,
       extra_of_w});
  if (loss == nullptr) costs.edge = edge_size(sent.values);
  from = std::move(sent);
}

/// Measures a layer.
/// @param from  inputs, which become the outputs
[[nodiscard]] inline layer_costs measure_layer(
    layer const& block,
    std::function<at::Tensor(tensors const&)> const* loss,
    edge_tensors& from,
    measure_options const& options,
    layer_keeper& keeper) {
  auto const compute = [&](tensors const& inputs) {
    auto outputs = block(inputs);
    return loss == nullptr ? outputs : tensors{(*loss)(outputs)};
  };
  c10::AutoGradMode const with_graph(true);
  keeper.watch([&] {
    auto const inputs = inputs_like(from.values, from.needs_gradient);
    auto outputs = compute(inputs);
    keeper.put_grads_aside(inputs, outputs);
    split_backward graph(inputs, defined(outputs));
    static_cast<void>(graph.backward(ones_for(outputs)));
  });
  pass_times times;
  for (int run = -options.warm_up; run < options.runs; ++run) {
    if (run == 0) times.clear();
    for (bool const is_fused : {false, true}) {
      auto const inputs = inputs_like(from.values, from.needs_gradient);
      std::vector<ticks> unused;
      auto outputs = times.run(is_fused ? unused : times.forward, [&] { return compute(inputs); });
      keeper.put_grads_aside(inputs, outputs);
      split_backward graph(inputs, defined(outputs));
      auto gradients = ones_for(outputs);
      outputs.clear();
      if (is_fused) {
        times.run(times.both, [&] { return graph.backward(std::move(gradients)); });
      } else {
        times.run(times.input, [&] { return graph.backward_input(std::move(gradients)); });
        times.run(times.weight, [&] { graph.backward_weight(); });
      }
    }
  }
  auto const received = bytes_of(from.values);
  layer_costs costs;
  costs.forward = zbpp::detail::median(times.forward);
  costs.backward_input = zbpp::detail::median(times.input);
  costs.backward_weight = zbpp::detail::median(times.weight);
  costs.backward_fused = std::clamp(
      zbpp::detail::median(times.both),
      std::max(costs.backward_input, costs.backward_weight),
      costs.backward_input + costs.backward_weight);
  measure_bytes(block, loss, from, costs);
  if (options.can_recompute) {
    costs.recompute = costs.forward;
    costs.recompute_input = std::min(received, costs.activation);
  }
  return costs;
}

}  // namespace detail

inline std::vector<layer_costs> measure_layers(
    std::vector<layer> const& layers,
    tensors const& batch,
    std::function<at::Tensor(tensors const& outputs)> const& loss,
    measure_options const& options) {
  zbpp::detail::require(!layers.empty(), "measure_layers takes one layer at least");
  zbpp::detail::require(
      options.runs >= 1 && options.warm_up >= 0,
      "measure_layers takes 1 run or more, and 0 or more to warm up");
  detail::pass_scope const scope;
  detail::generator_keeper const generators(batch);
  std::vector<layer_costs> measured;
  edge_tensors from{batch, std::vector<bool>(batch.size(), false)};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    std::string const name = zbpp::detail::joined("layer ", i);
    auto const* const last = i + 1 == layers.size() ? &loss : nullptr;
    auto const state = [&block = layers[i]] {
      tensors all;
      for (auto const& list : {block.parameters(), block.buffers()})
        for (auto const& each : list) all.push_back(each.value);
      return all;
    };
    try {
      detail::layer_keeper keeper(state, name + " of measure_layers");
      measured.push_back(detail::measure_layer(layers[i], last, from, options, keeper));
      keeper.put_back();
    } catch (error const&) {
      throw;
    } catch (std::exception const& thrown) {
      std::throw_with_nested(
          error(errc::pass_failed) + name + " of measure_layers: " + zbpp::detail::text_of(thrown));
    }
  }
  return measured;
}

}  // namespace zbpp::torch
