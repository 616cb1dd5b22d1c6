// SPDX-License-Identifier: Apache-2.0
//
// How a model is checked and measured.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/runtime/detail/flow_state.hpp>
#include <zbpp/runtime/microbatch.hpp>
#include <zbpp/torch/auto_pipeline.hpp>
#include <zbpp/torch/detail/layer_keeper.hpp>
#include <zbpp/torch/host_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <unordered_map>

namespace zbpp::torch::detail {

/// Microbatch 0 of step 0, as a pipeline of one stage has it.
class first_microbatch {
 public:
  explicit first_microbatch(int microbatches)
      : losses_(static_cast<std::size_t>(microbatches)),
        stage_{.stages = 1, .microbatches = microbatches, .losses = losses_.data()} {
    flow_.common = &stage_;
  }
  first_microbatch(first_microbatch const&) = delete;
  first_microbatch& operator=(first_microbatch const&) = delete;

  [[nodiscard]] microbatch get() noexcept { return microbatch(flow_); }

 private:
  std::vector<double> losses_;
  zbpp::detail::stage_context stage_;
  zbpp::detail::flow_state flow_;
};

/// Has kernels of this thread use some threads while it lives.
class kernel_threads_scope {
 public:
  explicit kernel_threads_scope(int count) : before_(at::get_num_threads()) {
    intra_op_threads(count)({});
  }
  kernel_threads_scope(kernel_threads_scope const&) = delete;
  kernel_threads_scope& operator=(kernel_threads_scope const&) = delete;
  ~kernel_threads_scope() { at::set_num_threads(before_); }

 private:
  int before_;
};

/// Refuses a parameter of two layers, which two ranks would step and add gradients to.
inline void check_unshared(std::vector<layer> const& layers) {
  std::unordered_map<void const*, std::size_t> owners;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (auto const& each : layers[i].parameters()) {
      auto const found = owners.emplace(each.value.unsafeGetTensorImpl(), i).first;
      if (found->second != i)
        throw error(errc::bad_argument) + "layers " + found->second + " and " + i +
            " share a parameter; make them one layer, or give each a leaf of its own "
            "(tied_parameter)";
    }
  }
}

/// Whether who starts the program says when glibc gives memory back.
[[nodiscard]] inline bool environment_states_thresholds() {
  std::string const text = std::getenv("GLIBC_TUNABLES") ? std::getenv("GLIBC_TUNABLES") : "";
  return std::getenv("MALLOC_MMAP_THRESHOLD_") || std::getenv("MALLOC_TRIM_THRESHOLD_") ||
         text.find("malloc.mmap_threshold") != text.npos ||
         text.find("malloc.trim_threshold") != text.npos;
}

[[nodiscard]] inline placement first_placement(auto_settings const& settings) {
  return settings.pipeline.plan.placement.value_or(placement::linear(settings.ranks));
}

inline void prepare(layer_sequence const& model, auto_settings& settings) {
  auto const& layers = model.layers();
  zbpp::detail::require(!layers.empty(), "auto_pipeline: the model has no layers");
  auto const& fixed = settings.pipeline.plan.placement;
  if (settings.ranks == 0 && fixed) settings.ranks = fixed->ranks();
  zbpp::detail::require(
      settings.ranks >= 1, "auto_pipeline: auto_settings::ranks is not set; it is at least 1");
  zbpp::detail::require(
      !fixed || fixed->ranks() == settings.ranks,
      "auto_pipeline: the placement has other ranks than auto_settings::ranks says; leave that 0");
  zbpp::detail::require(
      settings.microbatches >= 1,
      "auto_pipeline: auto_settings::microbatches is not set; it is at least 1");
  zbpp::detail::require(
      settings.kernel_threads >= 1, "auto_pipeline: auto_settings::kernel_threads is less than 1");
  zbpp::detail::require(
      settings.optimizer_tensors >= 0,
      "auto_pipeline: auto_settings::optimizer_tensors is negative");
  if (!settings.costs.empty() && settings.costs.size() != layers.size())
    throw error(errc::bad_argument) + "auto_pipeline: auto_settings::costs has " +
        settings.costs.size() + " layers, the model " + layers.size();
  check_unshared(layers);
  // What is wrong with the rest is said before anything is measured.
  auto stated = settings;
  if (stated.costs.empty()) stated.costs.resize(layers.size());
  static_cast<void>(problem_of(model, stated));
  if (settings.keeps_freed_memory && !environment_states_thresholds()) keep_freed_memory();
}

/// Says in a line what layers cost.
[[nodiscard]] inline std::string text_of_measured(std::vector<layer_costs> const& costs) {
  auto const time_of = [](layer_costs const& each) {
    return each.forward + each.backward_input + each.backward_weight;
  };
  auto const all = merge_layers(costs);
  auto const longest = std::ranges::max_element(costs, {}, time_of);
  auto const text = [](ticks time) { return fixed_text(to_milliseconds(time), 3) + " ms"; };
  return zbpp::detail::joined("measured ") + costs.size() + " layers: F takes " +
         text(all.forward) + ", B " + text(all.backward_input) + " and W " +
         text(all.backward_weight) + " in all; layer " + (longest - costs.begin()) +
         " takes the longest, " + text(time_of(*longest));
}

inline std::vector<layer_costs> measure_model(
    layer_sequence const& model, stage_ends const& ends, auto_settings const& settings) {
  first_microbatch first(settings.microbatches);
  kernel_threads_scope const limit(settings.kernel_threads);
  generator_keeper const generators{tensors()};
  auto costs = measure_layers(
      model.layers(),
      batch_of(ends, first.get()),
      [&](tensors const& outputs) { return loss_of(ends, outputs, first.get()); },
      settings.measure);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    auto const& each = model.layers()[i];
    for (auto const& buffer : each.buffers()) costs[i].static_memory += bytes_of({buffer.value});
    for (auto const& [name, value] : each.parameters())
      costs[i].static_memory +=
          bytes_of({value}) * (value.requires_grad() ? 2 + settings.optimizer_tensors : 1);
  }
  if (settings.pipeline.on_report) settings.pipeline.on_report(text_of_measured(costs));
  return costs;
}

inline problem problem_of(layer_sequence const& model, auto_settings const& settings) {
  auto costs = settings.costs;
  zbpp::detail::require(
      costs.size() == model.layers().size(),
      "auto_pipeline: rank 0 has another number of layers; give all processes the same model");
  for (std::size_t i = 0; i < costs.size(); ++i)
    for (auto const& parameter : model.layers()[i].parameters())
      for (auto const& leaf : settings.tied)
        if (parameter.value.is_same(leaf)) costs[i].tied = bytes_of({leaf});
  auto const placed = first_placement(settings);
  return with_placement(
      problem(
          std::move(costs),
          {.ranks = placed.ranks(),
           .microbatches = settings.microbatches,
           .transfer = settings.transfer,
           .memory_limits = settings.memory_limits,
           .rank_speeds = settings.rank_speeds}),
      placed);
}

}  // namespace zbpp::torch::detail
