// SPDX-License-Identifier: Apache-2.0
//
// How W are chosen that run in front of their places.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/early_w.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Moves an average towards what was seen last.
ZBPP_INLINE void follow(ticks& average, ticks seen) {
  constexpr ticks steps = 4;  // of which the average mostly is
  average += (seen - average) / steps;
}

ZBPP_INLINE early_w::early_w(
    rank_code const& code, std::span<chunk_state const> chunks, double overrun)
    : chunks_(chunks.size()),
      expected_(code.instructions.size()),
      has_run_(code.instructions.size(), 0),
      overrun_(overrun) {
  auto const& row = code.instructions;
  for (std::size_t c = 0; c < chunks.size(); ++c)
    chunks_[c].takes = chunks[c].costs.backward_weight;

  std::size_t optimizer = 0;  // behind the last instruction that no W may pass
  std::vector<std::size_t> flows(index(code.flow_slots), 0);  // behind the last of each flow
  std::int32_t channels = 0;
  for (std::size_t at = 0; at < row.size(); ++at) {
    auto const& i = row[at];
    bool const is_second = i.begins_pair && i.channel == ready_instruction::none;
    expected_[at].channel = row[at + (is_second ? 1 : 0)].channel;
    channels = std::max(channels, i.channel + 1);
    if (is_pass(i.kind)) {
      passes_.push_back(
          {.kind = static_cast<pass_kind>(i.kind),
           .stage = chunks[index(i.chunk)].common.stage,
           .microbatch = i.microbatch,
           .is_paired = i.is_paired});
      if (passes_.back().makes_weight_gradient()) {
        bool const may_move = i.kind == instruction_kind::backward_weight && !i.is_paired;
        chunks_[index(i.chunk)].all.push_back(
            {.at = at,
             .number = passes_.size() - 1,
             .earliest = may_move ? std::max(flows[index(i.slot)], optimizer) : none});
      }
    }
    if (i.slot != ready_instruction::none)
      flows[index(i.slot)] = at + 1;
    else
      optimizer = at + 1;
  }
  lateness_.resize(index(channels), 0);
}

ZBPP_INLINE void early_w::begin_step(ticks now, std::span<timed_pass> times) {
  begin_ = now;
  missing_ = {};
  for (auto& chunk : chunks_) chunk.next = 0;
  std::ranges::fill(has_run_, char{0});
  std::ranges::fill(lateness_, 0);
  for (std::size_t k = 0; k < times.size(); ++k) times[k].pass = passes_[k];
}

ZBPP_INLINE std::size_t early_w::choose(std::size_t waiting, ticks now) {
  missing_ = {.at = waiting, .time = now};
  auto const may_run = [waiting](chunk_w const& chunk) {
    return chunk.next < chunk.all.size() && chunk.all[chunk.next].earliest <= waiting;
  };
  chunk_w const* first = nullptr;  // the one whose W comes first in the program
  for (auto const& chunk : chunks_)
    if (may_run(chunk) &&
        (first == nullptr || chunk.all[chunk.next].at < first->all[first->next].at))
      first = &chunk;
  return first != nullptr && pays(waiting, *first, now) ? first->all[first->next].at : none;
}

ZBPP_INLINE bool early_w::pays(std::size_t waiting, chunk_w const& chunk, ticks now) const {
  auto const& [channel, time] = expected_[waiting];
  if (time == unknown) return false;
  auto const arrival = begin_ + time + lateness_[index(channel)];
  auto const takes = static_cast<double>(chunk.takes);
  return static_cast<double>(now - arrival) + takes <= overrun_ * takes;
}

ZBPP_INLINE void early_w::move_to_front(std::size_t at, std::span<timed_pass> times) {
  has_run_[at] = 1;
  missing_.has_run_w = true;
  for (auto const& chunk : chunks_) {
    if (chunk.next == chunk.all.size() || chunk.all[chunk.next].at != at) continue;
    auto const& moved = passes_[chunk.all[chunk.next].number];
    auto const found = std::ranges::find(times, moved, &timed_pass::pass);
    std::rotate(times.begin(), found, found + 1);
  }
}

ZBPP_INLINE void early_w::note_pass(ready_instruction const& i, ticks took) {
  if (i.kind != instruction_kind::backward_weight && i.kind != instruction_kind::backward) return;
  auto& chunk = chunks_[index(i.chunk)];
  ++chunk.next;
  if (i.kind == instruction_kind::backward_weight) follow(chunk.takes, took);
}

ZBPP_INLINE void early_w::note_arrival(std::size_t at, ticks now, ticks arrival) {
  bool const was_missing = missing_.at == at;
  bool const is_known = arrival != 0 || was_missing;  // otherwise it may have come before
  if (arrival == 0)
    arrival = was_missing && missing_.has_run_w ? std::midpoint(missing_.time, now) : now;
  auto const since_begin = arrival - begin_;
  auto& [channel, time] = expected_[at];
  if (time == unknown) {
    time = since_begin;
  } else if (is_known || since_begin < time) {
    lateness_[index(channel)] = since_begin - time;
    follow(time, since_begin);
  }
}

}  // namespace zbpp::detail
