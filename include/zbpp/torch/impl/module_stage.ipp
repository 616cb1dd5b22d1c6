// SPDX-License-Identifier: Apache-2.0
//
// What the passes of a module do.
#pragma once

#include <zbpp/torch/detail/layer_keeper.hpp>
#include <zbpp/torch/module_stage.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace zbpp::torch {

namespace detail {

/// @return how two tensors differ, in words; nothing where they have the same bits
[[nodiscard]] inline std::string difference(at::Tensor const& before, at::Tensor const& now) {
  if (!before.defined() || !now.defined()) {
    if (before.defined() == now.defined()) return {};
    return now.defined() ? "F gave an undefined tensor" : "R gave an undefined tensor";
  }
  std::ostringstream text;
  if (before.sizes() != now.sizes() || before.scalar_type() != now.scalar_type()) {
    text << "F gave " << before.scalar_type() << " of sizes " << before.sizes() << ", R "
         << now.scalar_type() << " of sizes " << now.sizes();
    return text.str();
  }
  auto const plain = [](at::Tensor const& from) {
    return (from.is_sparse() ? from.to_dense() : from).to(at::kCPU).contiguous();
  };
  auto const a = plain(before);
  auto const b = plain(now);
  auto const size = static_cast<std::size_t>(a.element_size());
  auto const* const of_a = static_cast<char const*>(a.data_ptr());
  auto const* const of_b = static_cast<char const*>(b.data_ptr());
  std::int64_t first = -1;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    auto const at = i * static_cast<std::int64_t>(size);
    if (std::memcmp(of_a + at, of_b + at, size) == 0) continue;
    if (count++ == 0) first = i;
  }
  if (count == 0) return {};
  text.precision(std::numeric_limits<double>::max_digits10);
  text << count << " of " << a.numel() << " numbers, the first at " << first << ", where F has "
       << a.view(-1)[first].item() << " and R " << b.view(-1)[first].item();
  return text.str();
}

[[nodiscard]] inline tensors copies_of(tensors const& all) {
  tensors made;
  for (auto const& each : all) made.push_back(each.defined() ? each.detach().clone() : each);
  return made;
}

/// @return the tensors, with one that needs no gradient for each that is undefined
inline tensors defined(tensors all) {
  for (auto& each : all)
    if (!each.defined()) each = at::empty({0});
  return all;
}

inline tensors batch_of(stage_ends const& ends, microbatch mb) {
  zbpp::detail::require(
      static_cast<bool>(ends.batch), "the first stage needs stage_ends::batch, its inputs");
  return ends.batch(mb);
}

inline at::Tensor loss_of(stage_ends const& ends, tensors const& outputs, microbatch mb) {
  zbpp::detail::require(
      static_cast<bool>(ends.loss), "the last stage needs stage_ends::loss to train");
  auto loss = ends.loss(outputs, mb);
  zbpp::detail::require(
      loss.defined() && loss.numel() == 1, "stage_ends::loss gives a tensor of one number");
  return loss;
}

/// W may need a gradient as it is, and the receiver may make its memory the `grad` of a parameter:
/// so one whose memory is held elsewhere is copied.
[[nodiscard]] inline tensors unshared(tensors gradients) {
  for (auto& each : gradients)
    if (each.defined() && each.has_storage() && each.storage().use_count() > 1) each = each.clone();
  return gradients;
}

/// What F sends without a graph, because R makes it again, may need a gradient if numbers of its
/// type can have one.
[[nodiscard]] inline message to_edge(tensors values, bool wants_gradients, pass_context ctx) {
  edge_tensors sent;
  for (auto const& each : values) {
    bool const can = each.defined() && (each.is_floating_point() || each.is_complex());
    sent.needs_gradient.push_back(can && (wants_gradients || each.requires_grad()));
    sent.values.push_back(each.defined() ? each.detach() : each);
  }
  auto const size = edge_size(sent.values);
  return ctx.make_edge(std::move(sent), size);
}

}  // namespace detail

inline tensors module_flow::batch(microbatch mb) const {
  std::optional<detail::draw_turns> turns;
  if (mb.has_recomputation() && recompute_.restore_generators) turns.emplace();
  return detail::batch_of(ends_, mb);
}

inline message module_flow::forward(
    work& kept, message& from_before, microbatch mb, pass_context ctx) const {
  detail::pass_scope const scope;
  kept.in = mb.is_first_stage() ? edge_tensors{batch(mb), {}} : from_before.get<edge_tensors>();
  from_before.clear();  // or it would keep the tensors until W has ended
  bool const is_redone = mb.is_training() && mb.is_recomputed();
  std::optional<detail::draw_recorder> recorder;
  std::optional<detail::draw_turns> turns;
  if (is_redone && recompute_.restore_generators)
    recorder.emplace(kept.draws, kept.in.values);
  else if (mb.has_recomputation() && recompute_.restore_generators)
    turns.emplace();
  auto outputs = run(kept, mb, mb.is_training() && !is_redone);
  recorder.reset();
  turns.reset();
  if (is_redone && recompute_.check) kept.made = copies_of_made(kept, outputs);
  if (kept.loss.defined()) mb.report_loss(kept.loss.item<double>());
  if (mb.is_last_stage() && mb.is_training()) return {};
  return detail::to_edge(std::move(outputs), mb.is_recomputed(), ctx);
}

inline void module_flow::recompute(work& kept, microbatch mb) const {
  detail::pass_scope const scope;
  auto const list = [this] {
    tensors all;
    for (auto* const root : modules_)
      for (auto const& each : root->buffers()) all.push_back(each);
    return all;
  };
  detail::layer_keeper buffers(list, "a stage that R runs again");
  std::optional<detail::draw_replay> replay;
  if (recompute_.restore_generators) replay.emplace(kept.draws, kept.in.values);
  auto const outputs = run(kept, mb, true);
  replay.reset();
  buffers.put_back();
  kept.draws.turns.clear();
  if (!recompute_.check) return;
  check_made(kept, copies_of_made(kept, outputs), kept.loss.defined());
  kept.made.clear();
}

inline tensors module_flow::copies_of_made(work const& kept, tensors const& outputs) {
  auto made = detail::copies_of(outputs);
  if (kept.loss.defined()) made.push_back(kept.loss);
  return made;
}

inline void module_flow::check_made(work const& kept, tensors const& outputs, bool has_loss) {
  auto const& before = kept.made;
  std::string found;
  if (before.size() != outputs.size())
    found = zbpp::detail::joined("R made ", outputs.size(), " tensors, F made ", before.size());
  for (std::size_t i = 0; i < outputs.size() && found.empty(); ++i) {
    auto const differs = detail::difference(before[i], outputs[i]);
    if (differs.empty()) continue;
    bool const is_loss = has_loss && i + 1 == outputs.size();
    found = (is_loss ? "the loss" : "output " + std::to_string(i)) +
            " of R differs from that of F: " + differs;
  }
  if (found.empty()) return;
  throw error(errc::bad_argument) + found +
      "; a stage that is recomputed has to compute the same twice: look for random numbers "
      "of generators of its own, buffers that F changes, and inputs that it writes to";
}

inline tensors module_flow::run(work& kept, microbatch mb, bool has_graph) const {
  tensors leaves;
  tensors inputs;
  for (std::size_t i = 0; i < kept.in.values.size(); ++i) {
    auto const& each = kept.in.values[i];
    bool const waits =
        mb.is_training() && i < kept.in.needs_gradient.size() && kept.in.needs_gradient[i];
    leaves.push_back(waits ? each.detach().requires_grad_() : each);
    c10::AutoGradMode const with_graph(true);
    // The leaf's own `retain_grad()` would do nothing, and its hooks run apart from others.
    bool const is_plain = waits && each.layout() == at::kStrided;
    inputs.push_back(is_plain ? at::alias(leaves.back()) : leaves.back());
  }
  c10::AutoGradMode const mode(has_graph);
  auto outputs = forward_(inputs);
  if (!mb.is_last_stage()) {
    if (has_graph) kept.graph = split_backward(leaves, detail::defined(outputs));
    return outputs;
  }
  if (!ends_.loss && !mb.is_training()) return outputs;
  auto const loss = detail::loss_of(ends_, outputs, mb);
  if (has_graph) kept.graph = split_backward(leaves, loss);
  kept.loss = loss.detach();
  return outputs;
}

inline tensors module_flow::gradients(work const& kept, message const& from_after, microbatch mb) {
  if (!mb.is_last_stage()) return from_after.get<edge_tensors>().values;
  return {at::full_like(kept.loss, mb.loss_scale())};
}

inline message module_flow::backward(
    work& kept, message& from_after, microbatch mb, pass_context ctx) const {
  detail::pass_scope const scope;
  auto arrived = gradients(kept, from_after, mb);
  auto found = detail::unshared(
      mb.is_fused() ? kept.graph.backward(std::move(arrived))
                    : kept.graph.backward_input(std::move(arrived)));
  kept.in = {};
  from_after.clear();
  return detail::to_edge(std::move(found), false, ctx);
}

}  // namespace zbpp::torch
