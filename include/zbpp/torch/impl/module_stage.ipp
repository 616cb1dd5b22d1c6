// SPDX-License-Identifier: Apache-2.0
//
// What the passes of a module do.
#pragma once

#include <zbpp/torch/module_stage.hpp>

#include <cstddef>
#include <string>

namespace zbpp::torch {

inline at::Tensor detail::only(tensors const& all) {
  if (all.size() == 1) return all.front();
  throw error(
      errc::bad_argument,
      "a module that takes one tensor got " + std::to_string(all.size()) +
          "; let its forward take zbpp::torch::tensors");
}

/// @return the tensors, with one that needs no gradient for each that is undefined
inline tensors detail::defined(tensors all) {
  for (auto& each : all)
    if (!each.defined()) each = at::empty({0});
  return all;
}

inline tensors module_flow::batch(microbatch mb) const {
  zbpp::detail::require(
      static_cast<bool>(ends_.batch), "the first stage needs stage_ends::batch, its inputs");
  return ends_.batch(mb);
}

inline message module_flow::forward(work& kept, microbatch mb, pass_context ctx) const {
  auto outputs = run(kept, mb, mb.is_training() && !mb.is_recomputed());
  if (kept.loss.defined()) mb.report_loss(kept.loss.item<double>());
  if (mb.is_last_stage() && mb.is_training()) return {};
  return to_edge(std::move(outputs), mb.is_recomputed(), ctx);
}

inline void module_flow::recompute(work& kept, microbatch mb) const {
  static_cast<void>(run(kept, mb, true));
}

inline tensors module_flow::run(work& kept, microbatch mb, bool has_graph) const {
  c10::AutoGradMode const mode(has_graph);
  tensors inputs;
  for (std::size_t i = 0; i < kept.in.values.size(); ++i) {
    auto const& each = kept.in.values[i];
    bool const waits = i < kept.in.needs_gradient.size() && kept.in.needs_gradient[i];
    inputs.push_back(has_graph && waits ? each.detach().requires_grad_() : each);
  }
  auto outputs = forward_(inputs);
  if (!mb.is_last_stage()) {
    if (has_graph) kept.graph = split_backward(inputs, detail::defined(outputs));
    return outputs;
  }
  if (!ends_.loss) {
    zbpp::detail::require(!mb.is_training(), "the last stage needs stage_ends::loss to train");
    return outputs;
  }
  auto const loss = ends_.loss(outputs, mb);
  zbpp::detail::require(
      loss.defined() && loss.numel() == 1, "stage_ends::loss gives a tensor of one number");
  if (has_graph) kept.graph = split_backward(inputs, loss);
  kept.loss = loss.detach();
  return outputs;
}

inline tensors module_flow::gradients(work const& kept, message const& from_after, microbatch mb) {
  if (!mb.is_last_stage()) return from_after.get<edge_tensors>().values;
  return {at::full_like(kept.loss, mb.loss_scale())};
}

// W may need a gradient as it is, and the receiver may make its memory the `grad` of a parameter:
// so one whose memory is held elsewhere is copied.
inline tensors module_flow::unshared(tensors gradients) {
  for (auto& each : gradients)
    if (each.defined() && each.has_storage() && each.storage().use_count() > 1) each = each.clone();
  return gradients;
}

// What F sends without a graph, because R makes it again, may need a gradient if numbers of its
// type can have one.
inline message module_flow::to_edge(tensors values, bool wants_gradients, pass_context ctx) {
  edge_tensors sent;
  for (auto const& each : values) {
    bool const can = each.defined() && (each.is_floating_point() || each.is_complex());
    sent.needs_gradient.push_back(can && (wants_gradients || each.requires_grad()));
    sent.values.push_back(each.defined() ? each.detach() : each);
  }
  auto const size = edge_size(sent.values);
  return ctx.make_edge(std::move(sent), size);
}

}  // namespace zbpp::torch
