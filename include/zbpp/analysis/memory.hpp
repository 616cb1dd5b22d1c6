// SPDX-License-Identifier: Apache-2.0
//
// How much memory each rank needs: activations as the costs of its stages say, and what its edges
// hold. Both follow from the order of the program alone, so a real run meets them byte for byte.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

/// States the greatest use of a rank's memory over a step, in bytes.
struct memory_peak {
  bytes activations = 0;      ///< what passes keep for later passes
  bytes edges = 0;            ///< messages: being sent, received, or handed to the next chunk
  bytes total = 0;            ///< both at one time, with static memory and workspace
  std::int64_t position = 0;  ///< index of the instruction during which `total` is reached

  friend bool operator==(memory_peak const&, memory_peak const&) = default;
};

namespace detail {

/// Follows the activations of one rank through its passes.
///
/// F adds what it keeps, B frees all but what W needs, W frees that; with R, F keeps
/// `recompute_input` and R adds the rest.
class activation_count {
 public:
  activation_count(problem const& problem, std::span<pass const> row) : problem_(problem) {
    for (auto const& p : row)
      if (p.kind == pass_kind::recompute) recomputed_.push_back({p.stage, p.microbatch});
    std::sort(recomputed_.begin(), recomputed_.end());
  }

  /// Begins a pass. @return what is in use while it runs
  bytes begin(pass const& p) {
    auto const& c = problem_.costs(p.stage);
    if (p.kind == pass_kind::forward)
      in_use_ += is_recomputed(p) ? c.recompute_input : c.activation;
    if (p.kind == pass_kind::recompute) in_use_ += c.activation - c.recompute_input;
    return in_use_;
  }

  /// Ends a pass. @return what is in use after it
  bytes end(pass const& p) {
    auto const& c = problem_.costs(p.stage);
    if (p.kind == pass_kind::backward_input) in_use_ -= c.activation - c.weight_gradient_input;
    if (p.kind == pass_kind::backward_weight) in_use_ -= c.weight_gradient_input;
    if (p.kind == pass_kind::backward) in_use_ -= c.activation;
    return in_use_;
  }

 private:
  [[nodiscard]] bool is_recomputed(pass const& p) const {
    return !recomputed_.empty() &&
           std::binary_search(
               recomputed_.begin(), recomputed_.end(), std::pair(p.stage, p.microbatch));
  }

  problem const& problem_;
  std::vector<std::pair<std::int32_t, std::int32_t>> recomputed_;
  bytes in_use_ = 0;
};

/// Follows the messages of one rank after another through their instructions.
class edge_count {
 public:
  edge_count(problem const& problem, traffic const& messages)
      : problem_(problem), map_(messages.map()), unretired_(index(map_.size())) {}

  /// Begins the row of another rank.
  void begin_row() { in_use_ = 0; }

  /// Begins an instruction. @return what is in use while it runs
  bytes begin(instruction const& i, message_note const& note) {
    if (i.is_receive()) in_use_ += edge_between(i.stage, i.other_stage());
    if (!i.is_pass()) return in_use_;
    if (note.retired >= 0) retire(map_.reverse(note.channel), note.retired);
    in_use_ += output_of(i.as_pass());
    return in_use_;
  }

  /// Ends an instruction: what a pass consumed is free, and what it sends waits to be retired.
  void end(instruction const& i, message_note const& note) {
    if (i.is_pass()) in_use_ -= input_of(i.as_pass());
    if (i.is_send()) {
      auto& queue = unretired_[index(note.channel)];
      queue.sizes.push_back(edge_between(i.stage, i.other_stage()));
    }
  }

 private:
  struct outgoing {
    std::vector<bytes> sizes;  // of all messages so far
    std::size_t retired = 0;
  };

  [[nodiscard]] bytes edge_between(int a, int b) const {
    return problem_.costs(std::min(a, b)).edge;
  }

  [[nodiscard]] bytes output_of(pass const& p) const {
    if (p.kind == pass_kind::forward && p.stage + 1 < problem_.stages())
      return problem_.costs(p.stage).edge;
    return p.makes_input_gradient() && p.stage > 0 ? problem_.costs(p.stage - 1).edge : 0;
  }

  [[nodiscard]] bytes input_of(pass const& p) const {
    if (p.kind == pass_kind::forward && p.stage > 0) return problem_.costs(p.stage - 1).edge;
    return p.makes_input_gradient() && p.stage + 1 < problem_.stages()
               ? problem_.costs(p.stage).edge
               : 0;
  }

  void retire(int channel, std::int32_t count) {
    auto& queue = unretired_[index(channel)];
    for (; queue.retired < index(count); ++queue.retired) in_use_ -= queue.sizes[queue.retired];
  }

  problem const& problem_;
  channel_map const& map_;
  std::vector<outgoing> unretired_;
  bytes in_use_ = 0;
};

}  // namespace detail

/// Says how many bytes of activations a rank holds while each of its passes runs.
/// @return one number a pass, in the order of the schedule
/// @throws error (bad_argument) when schedule and problem differ in placement or microbatches
[[nodiscard]] inline rows<bytes> activation_profile(schedule const& order, problem const& problem) {
  detail::require_fit(order, problem);
  rows<bytes> profile;
  profile.reserve(detail::index(order.ranks()), order.passes().size());
  for (int rank = 0; rank < order.ranks(); ++rank) {
    detail::activation_count count(problem, order.passes(rank));
    for (auto const& p : order.passes(rank)) {
      profile.push(count.begin(p));
      count.end(p);
    }
    profile.end_row();
  }
  return profile;
}

/// Says the most bytes of activations that each rank of a schedule holds.
/// @throws error (bad_argument) when schedule and problem differ in placement or microbatches
[[nodiscard]] inline std::vector<bytes> peak_activations(
    schedule const& order, problem const& problem) {
  auto const profile = activation_profile(order, problem);
  std::vector<bytes> peaks;
  for (int rank = 0; rank < profile.ranks(); ++rank) {
    auto const row = profile[rank];
    peaks.push_back(row.empty() ? 0 : *std::max_element(row.begin(), row.end()));
  }
  return peaks;
}

/// Says the greatest memory use of each rank of a program that has no other fault.
///
/// A message counts on its receiver from the receive to the end of the pass that consumes it, and
/// on its sender from the pass that makes it until a later message tells that it was consumed;
/// between two chunks of one rank, from the pass that makes it to the end of the pass that consumes
/// it.
/// @throws error (bad_argument) when program and problem differ in placement or microbatches
/// @complexity O(instructions)
[[nodiscard]] inline std::vector<memory_peak> peak_memory(
    program const& code, problem const& problem, traffic const& messages) {
  detail::require_fit(code, problem);
  std::vector<memory_peak> peaks;
  std::vector<pass> passes;
  detail::edge_count edges(problem, messages);
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const row = code.instructions(rank);
    passes.clear();
    for (auto const& i : row)
      if (i.is_pass()) passes.push_back(i.as_pass());
    detail::activation_count activations(problem, passes);
    edges.begin_row();
    memory_peak peak;
    bytes fixed = 0;
    for (int s : code.placement().stages_of(rank)) fixed += problem.costs(s).static_memory;
    bytes held = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto const note = messages.notes(rank)[i];
      auto const moving = edges.begin(row[i], note);
      bytes workspace = 0;
      if (row[i].is_pass()) {
        held = activations.begin(row[i].as_pass());
        workspace = problem.costs(row[i].stage).workspace;
        peak.activations = std::max(peak.activations, held);
      }
      peak.edges = std::max(peak.edges, moving);
      if (auto const total = fixed + held + moving + workspace; total > peak.total) {
        peak.total = total;
        peak.position = static_cast<std::int64_t>(i);
      }
      if (row[i].is_pass()) held = activations.end(row[i].as_pass());
      edges.end(row[i], note);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

/// Says the greatest memory use of each rank of a program that has no other fault.
/// @throws error (bad_argument) when program and problem differ in placement or microbatches
[[nodiscard]] inline std::vector<memory_peak> peak_memory(
    program const& code, problem const& problem) {
  return peak_memory(code, problem, traffic(code));
}

}  // namespace zbpp
