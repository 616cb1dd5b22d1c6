// SPDX-License-Identifier: Apache-2.0
//
// How forward passes are run in thought, to find out how many messages have to be held.
#pragma once

#include <zbpp/analysis/detail/edge_count.hpp>
#include <zbpp/analysis/evaluation.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/program.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp {

// Transfers keep their order, so a cycle of waits among the forward passes alone would be one of
// the verified program, too, whichever transfers share a queue.
ZBPP_INLINE program forward_only(program const& program) {
  rows<instruction> forwards;
  for (int rank = 0; rank < program.ranks(); ++rank) {
    for (auto const& i : program.instructions(rank))
      if (i.kind == instruction_kind::forward || i.moves_activation()) forwards.push(i);
    forwards.end_row();
  }
  auto channels = traffic(program.placement(), program.microbatches(), forwards).channels();
  return {program.placement(), program.microbatches(), std::move(forwards), std::move(channels)};
}

namespace detail {

/// Runs forward passes whose sends wait for room, and makes room where nothing moves.
///
/// A pass waits for its message, and a send until all messages but the last few of its channel are
/// consumed. What may go on stays able to, whatever else goes on first, and with more room it still
/// may. So one order stands for all, whether ranks are fast or slow: if this run deadlocks
/// with some depth, each run with that depth does, and with the depth of its end none does.
class depth_search {
 public:
  explicit depth_search(program const& forwards)
      : code_(forwards),
        messages_(forwards, 1),
        sent_(messages_.channels().size(), 0),
        consumed_(sent_.size(), 0),
        next_(index(forwards.ranks()), 0) {}

  [[nodiscard]] int run() {
    while (!is_done())
      if (!advance_all()) ++depth_;
    return depth_;
  }

 private:
  [[nodiscard]] bool is_done() const {
    for (int rank = 0; rank < code_.ranks(); ++rank)
      if (next_[index(rank)] < code_.instructions(rank).size()) return false;
    return true;
  }

  // Returns whether anything has moved.
  bool advance_all() {
    bool has_moved = false;
    for (int rank = 0; rank < code_.ranks(); ++rank) {
      auto const row = code_.instructions(rank);
      for (auto& at = next_[index(rank)]; at < row.size(); ++at) {
        if (!run(row[at], messages_.notes(rank)[at])) break;
        has_moved = true;
      }
    }
    return has_moved;
  }

  bool run(instruction const& i, message_note const& note) {
    if (note.sequence < 0 || i.is_receive()) return true;
    auto& sent = sent_[index(note.channel)];
    auto& consumed = consumed_[index(note.channel)];
    if (i.is_send()) {
      if (sent - consumed >= depth_) return false;
      ++sent;
      return true;
    }
    if (sent <= note.sequence) return false;
    consumed = note.acknowledged;
    return true;
  }

  program const& code_;
  traffic messages_;
  std::vector<std::int32_t> sent_;      // by channel
  std::vector<std::int32_t> consumed_;  // by channel, without a gap
  std::vector<std::size_t> next_;       // by rank
  int depth_ = 2;
};

}  // namespace detail

ZBPP_INLINE int evaluation_depth(program const& forwards) {
  return detail::depth_search(forwards).run();
}

ZBPP_INLINE std::vector<memory_peak> peak_evaluation_memory(
    program const& program, problem const& problem) {
  detail::require_fit(program, problem);
  auto const code = forward_only(program);
  traffic const messages(code, evaluation_depth(code));
  detail::edge_count edges(problem, messages, {});
  std::vector<memory_peak> peaks;
  for (int rank = 0; rank < code.ranks(); ++rank) {
    auto const row = code.instructions(rank);
    edges.begin_row();
    memory_peak peak;
    bytes fixed = 0;
    for (int s : code.placement().stages_of(rank)) fixed += problem.fixed_memory(s);
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto const note = messages.notes(rank)[i];
      auto const moving = edges.begin(row[i], note);
      auto const& costs = problem.costs(row[i].stage);
      auto const held = row[i].is_pass() ? costs.activation : 0;
      auto const workspace = row[i].is_pass() ? costs.workspace : 0;
      peak.activations = std::max(peak.activations, held);
      peak.edges = std::max(peak.edges, moving);
      if (auto const total = fixed + held + moving + workspace; total > peak.total) {
        peak.total = total;
        peak.position = static_cast<std::int64_t>(i);
      }
      edges.end(row[i], note);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace zbpp
