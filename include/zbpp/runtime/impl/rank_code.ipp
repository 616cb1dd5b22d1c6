// SPDX-License-Identifier: Apache-2.0
//
// How a rank's instructions get the slots of their flows.
#pragma once

#include <zbpp/analysis/traffic.hpp>
#include <zbpp/config.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/runtime/detail/rank_code.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::detail {

ZBPP_INLINE rank_code make_rank_code(program const& program, traffic const& messages, int rank) {
  using enum instruction_kind;
  constexpr auto none = ready_instruction::none;
  auto const row = program.instructions(rank);
  auto const& placement = program.placement();
  auto const chunks = static_cast<int>(placement.stages_of(rank).size());
  cells<std::int32_t> last_mention(chunks, program.microbatches(), none);
  cells<std::int32_t> last_pass(chunks, program.microbatches(), none);
  cells<char> recomputed(chunks, program.microbatches(), 0);
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (!row[i].has_microbatch()) continue;
    auto const chunk = placement.chunk_of(row[i].stage);
    last_mention(chunk, row[i].microbatch) = static_cast<std::int32_t>(i);
    if (row[i].is_pass()) last_pass(chunk, row[i].microbatch) = static_cast<std::int32_t>(i);
    if (row[i].kind == recompute) recomputed(chunk, row[i].microbatch) = 1;
  }

  rank_code result;
  result.instructions.reserve(row.size());
  cells<std::int32_t> slots(chunks, program.microbatches(), none);
  std::vector<std::int32_t> free_slots;
  auto slot_of = [&](int chunk, int microbatch) {
    auto& slot = slots(chunk, microbatch);
    if (slot == none) {
      if (free_slots.empty()) free_slots.push_back(result.flow_slots++);
      slot = free_slots.back();
      free_slots.pop_back();
    }
    return slot;
  };
  auto slot_if_here = [&](int stage, int microbatch) {
    bool const here = stage >= 0 && stage < placement.stages() && placement.rank_of(stage) == rank;
    return here ? slot_of(placement.chunk_of(stage), microbatch) : none;
  };

  for (std::size_t i = 0; i < row.size(); ++i) {
    auto const& from = row[i];
    auto const& note = messages.notes(rank)[i];
    auto const chunk = placement.chunk_of(from.stage);
    ready_instruction to{
        .kind = from.kind,
        .begins_pair = next_is_paired(row, i),
        .is_paired = from.is_paired,
        .acknowledges = from.is_pass() && note.acknowledged >= 0,
        .chunk = chunk,
        .microbatch = from.microbatch,
        .channel = note.channel,
        .sequence = note.sequence,
        .retired = std::max(note.retired, note.acknowledged)};
    if (from.has_microbatch()) {
      to.slot = slot_of(chunk, from.microbatch);
      to.ends_flow = last_pass(chunk, from.microbatch) == static_cast<std::int32_t>(i);
      to.frees_slot = last_mention(chunk, from.microbatch) == static_cast<std::int32_t>(i);
      to.is_recomputed = recomputed(chunk, from.microbatch) != 0;
      if (from.kind == forward) to.hand_over = slot_if_here(from.stage + 1, from.microbatch);
      if (from.is_pass() && from.as_pass().makes_input_gradient())
        to.hand_over = slot_if_here(from.stage - 1, from.microbatch);
      if (to.frees_slot) free_slots.push_back(to.slot);
    }
    result.instructions.push_back(to);
  }
  std::vector<bool> is_complete(index(chunks), false);
  for (auto i = result.instructions.rbegin(); i != result.instructions.rend(); ++i)
    if (i->kind == backward_weight || i->kind == backward) {
      i->is_last_w = !is_complete[index(i->chunk)];
      is_complete[index(i->chunk)] = true;
    }
  auto const validation = std::find_if(
      row.begin(), row.end(), [&](instruction const& each) { return each.kind == validate; });
  for (auto i = row.begin(); validation != row.end() && i != validation; ++i) {
    if (!i->is_receive()) continue;
    auto const channel = messages.map().of(*i);
    auto found = std::find_if(
        result.cut.begin(), result.cut.end(), [&](rank_code::early_messages const& each) {
          return each.channel == channel;
        });
    if (found == result.cut.end()) found = result.cut.insert(found, {channel, 0});
    ++found->count;
  }
  return result;
}

ZBPP_INLINE void state_times(
    rank_code& code, std::span<instruction const> row, problem const& problem) {
  for (std::size_t at = 0; at < row.size(); ++at) {
    auto const& from = row[at];
    auto& to = code.instructions[at];
    if (from.is_send())
      to.takes = problem.transfer_time(from.stage, from.other_stage(), from.microbatch);
    else if (from.is_paired)
      to.takes = problem.pair_time(row[at - 1].as_pass(), from.as_pass());
    else if (from.is_pass() && !to.begins_pair)
      to.takes = problem.time(from.as_pass());
  }
}

}  // namespace zbpp::detail
