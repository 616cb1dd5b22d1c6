// SPDX-License-Identifier: Apache-2.0
//
// What analysis/traffic.hpp declares.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/detail/rank_pairs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE channel_map::channel_map(placement const& placement)
    : forward_(detail::index(placement.stages()), none), backward_(forward_) {
  for (int s = 0; s + 1 < placement.stages(); ++s) {
    auto const from = placement.rank_of(s);
    auto const to = placement.rank_of(s + 1);
    if (from == to) continue;
    pairs_.emplace_back(from, to);
    pairs_.emplace_back(to, from);
  }
  std::sort(pairs_.begin(), pairs_.end());
  pairs_.erase(std::unique(pairs_.begin(), pairs_.end()), pairs_.end());
  for (int s = 0; s + 1 < placement.stages(); ++s) {
    forward_[detail::index(s)] = between(placement.rank_of(s), placement.rank_of(s + 1));
    backward_[detail::index(s) + 1] = between(placement.rank_of(s + 1), placement.rank_of(s));
  }
  for (auto const& [from, to] : pairs_) reverse_.push_back(between(to, from));
}

ZBPP_INLINE int channel_map::between(int from, int to) const noexcept {
  return detail::find_pair(pairs_, from, to);
}

namespace detail {

/// Counts the messages of one channel that have been consumed, and how many of them without a gap.
struct consumption {
  std::int32_t prefix = 0;
  std::vector<bool> early;  // of those beyond the prefix

  void add(std::int32_t sequence) {
    if (sequence != prefix) {
      if (detail::index(sequence) >= early.size()) early.resize(detail::index(sequence) + 1);
      early[detail::index(sequence)] = true;
      return;
    }
    do ++prefix;
    while (detail::index(prefix) < early.size() && early[detail::index(prefix)]);
  }
};

}  // namespace detail

ZBPP_INLINE traffic::traffic(program const& program)
    : traffic(program.placement(), program.microbatches(), program.instructions()) {}

ZBPP_INLINE traffic::traffic(
    placement const& placement, int microbatches, rows<instruction> const& instructions)
    : map_(placement), depths_(detail::index(map_.size())) {
  set_ends();
  retire(instructions, number(placement.stages(), microbatches, instructions));
}

ZBPP_INLINE traffic::traffic(program const& forwards, int depth)
    : map_(forwards.placement()), depths_(detail::index(map_.size())) {
  detail::require(depth >= 1, "a channel that acknowledges holds at least one message");
  set_ends();
  static_cast<void>(number(forwards.stages(), forwards.microbatches(), forwards.instructions()));
  acknowledge(forwards.instructions(), depth);
}

ZBPP_INLINE void traffic::set_ends() {
  for (int c = 0; c < map_.size(); ++c) {
    auto const [from, to] = map_.ends(c);
    depths_[detail::index(c)] = {from, to, 0, 0};
  }
}

ZBPP_INLINE std::vector<traffic::counters> traffic::number(
    int stages, int microbatches, rows<instruction> const& instructions) {
  cells<std::int32_t> activation(stages, microbatches, -1);
  cells<std::int32_t> gradient(stages, microbatches, -1);
  counters received(depths_.size(), 0);
  counters open(depths_.size(), 0);
  std::vector<detail::consumption> consumed(depths_.size());
  std::vector<counters> consumed_at_send(depths_.size());
  notes_.reserve(detail::index(instructions.ranks()), instructions.size());
  for (int rank = 0; rank < instructions.ranks(); ++rank) {
    for (auto const& i : instructions[rank]) {
      message_note note;
      note.channel = i.is_pass() ? map_.of_input(i.as_pass()) : map_.of(i);
      if (note.channel != channel_map::none) {
        auto const c = detail::index(note.channel);
        if (i.is_pass()) {
          bool const forward = i.kind == instruction_kind::forward;
          note.sequence = (forward ? activation : gradient)(i.stage, i.microbatch);
          if (note.sequence >= 0) consumed[c].add(note.sequence);
          --open[c];
        } else if (i.is_send()) {
          note.sequence = static_cast<std::int32_t>(consumed_at_send[c].size());
          consumed_at_send[c].push_back(consumed[detail::index(map_.reverse(note.channel))].prefix);
        } else {
          note.sequence = received[c]++;
          (i.moves_activation() ? activation : gradient)(i.stage, i.microbatch) = note.sequence;
          depths_[c].slots = std::max(depths_[c].slots, ++open[c]);
        }
      }
      notes_.push(note);
    }
    notes_.end_row();
  }
  return consumed_at_send;
}

ZBPP_INLINE void traffic::retire(
    rows<instruction> const& instructions, std::vector<counters> const& consumed_at_send) {
  counters retired(depths_.size(), 0);
  for (int rank = 0; rank < instructions.ranks(); ++rank) {
    auto const row = instructions[rank];
    auto const notes = notes_[rank];
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto& note = notes[i];
      if (note.sequence < 0) continue;
      auto const c = detail::index(note.channel);
      if (row[i].is_send()) {
        auto& depth = depths_[c];
        depth.in_flight = std::max(depth.in_flight, note.sequence + 1 - retired[c]);
      } else if (row[i].is_pass() && detail::index(note.sequence) < consumed_at_send[c].size()) {
        auto& back = retired[detail::index(map_.reverse(note.channel))];
        back = std::max(back, consumed_at_send[c][detail::index(note.sequence)]);
        note.retired = back;
      }
    }
  }
}

ZBPP_INLINE void traffic::acknowledge(rows<instruction> const& instructions, int depth) {
  std::vector<detail::consumption> consumed(depths_.size());
  for (int rank = 0; rank < instructions.ranks(); ++rank) {
    auto const row = instructions[rank];
    auto const notes = notes_[rank];
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto& note = notes[i];
      if (note.sequence < 0) continue;
      auto const c = detail::index(note.channel);
      if (row[i].is_pass()) {
        consumed[c].add(note.sequence);
        note.acknowledged = consumed[c].prefix;
      } else if (row[i].is_send()) {
        if (note.sequence >= depth) note.acknowledged = note.sequence + 1 - depth;
        depths_[c].in_flight = std::min(note.sequence + 1, depth);
      }
    }
  }
}

}  // namespace zbpp
