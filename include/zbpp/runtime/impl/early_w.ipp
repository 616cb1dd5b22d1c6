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
    : expected_(code.instructions.size()),
      has_run_(code.instructions.size(), 0),
      overrun_(overrun) {
  auto const& row = code.instructions;
  for (auto const& chunk : chunks) takes_.push_back(chunk.costs.backward_weight);

  std::size_t optimizer = 0;  // after the last instruction that no W may pass
  std::vector<std::size_t> flows(index(code.flow_slots), 0);  // after the last of each flow
  std::int32_t channels = 0;
  for (std::size_t at = 0; at < row.size(); ++at) {
    auto const& i = row[at];
    channels = std::max(channels, i.channel + 1);
    if (is_pass(i.kind)) {
      bool const is_second = i.begins_pair && i.channel == ready_instruction::none;
      expected_[at].channel = row[at + (is_second ? 1 : 0)].channel;
      passes_.push_back(
          {.kind = static_cast<pass_kind>(i.kind),
           .stage = chunks[index(i.chunk)].common.stage,
           .microbatch = i.microbatch,
           .is_paired = i.is_paired});
      if (passes_.back().makes_weight_gradient())
        places_.push_back(
            {.at = at,
             .number = passes_.size() - 1,
             .earliest = i.kind == instruction_kind::backward_weight
                             ? std::max(flows[index(i.slot)], optimizer)
                             : none,
             .chunk = i.chunk});
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
  next_ = 0;
  std::ranges::fill(has_run_, char{0});
  std::ranges::fill(lateness_, 0);
  for (std::size_t k = 0; k < times.size(); ++k) times[k].pass = passes_[k];
}

ZBPP_INLINE std::size_t early_w::choose(std::size_t waiting, ticks now) {
  missing_ = {.at = waiting, .time = now};
  if (next_ == places_.size()) return none;
  auto const& w = places_[next_];
  return w.earliest <= waiting && pays(waiting, takes_[index(w.chunk)], now) ? w.at : none;
}

ZBPP_INLINE bool early_w::pays(std::size_t waiting, ticks takes, ticks now) const {
  auto const& [channel, time] = expected_[waiting];
  if (time == unknown) return false;
  auto const late = now + takes - (begin_ + time + lateness_[index(channel)]);
  return static_cast<double>(late) <= overrun_ * static_cast<double>(takes);
}

ZBPP_INLINE void early_w::move_to_front(std::size_t at, std::span<timed_pass> times) {
  has_run_[at] = 1;
  missing_.has_run_w = true;
  auto const found = std::ranges::find(times, passes_[places_[next_].number], &timed_pass::pass);
  std::rotate(times.begin(), found, found + 1);
}

ZBPP_INLINE void early_w::note_pass(ready_instruction const& i, ticks took) {
  bool const is_w = i.kind == instruction_kind::backward_weight;
  if (is_w || i.kind == instruction_kind::backward) ++next_;
  if (is_w) follow(takes_[index(i.chunk)], took);
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
