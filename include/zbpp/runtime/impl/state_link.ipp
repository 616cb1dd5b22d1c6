// SPDX-License-Identifier: Apache-2.0
//
// How states move between ranks of one process.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/state_link.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace zbpp {

ZBPP_INLINE in_process_states::in_process_states(int ranks)
    : wakeups_(detail::index(ranks)), count_(2 * detail::index(std::max(ranks - 1, 0))) {
  lanes_ = std::make_unique<lane[]>(count_);
}

ZBPP_INLINE void in_process_states::send(
    int from, int to, std::span<std::byte const> state, ticks arrival) {
  auto& l = lane_of(from, to);
  auto const number = l.sent.load(std::memory_order_relaxed);
  auto& place = l.ring[number % l.ring.size()];
  place.state.assign(state.begin(), state.end());
  place.arrival = arrival;
  // Release: the receiver that sees the number sees the state. It has taken the last but one, or
  // this rank could not have gone on.
  l.sent.store(number + 1, std::memory_order_release);
  notify(wakeups_[detail::index(to)]);
}

ZBPP_INLINE ticks in_process_states::arrival(int from, int to) const noexcept {
  auto const& l = lane_of(from, to);
  // Acquire: pairs with the release in send.
  if (l.sent.load(std::memory_order_acquire) == l.taken) return not_yet;
  return l.ring[l.taken % l.ring.size()].arrival;
}

ZBPP_INLINE void in_process_states::take(int from, int to, std::vector<std::byte>& state) {
  auto& l = lane_of(from, to);
  auto const& place = l.ring[l.taken % l.ring.size()];
  state.assign(place.state.begin(), place.state.end());
  ++l.taken;
}

ZBPP_INLINE void in_process_states::drain() noexcept {
  for (auto& l : std::span(lanes_.get(), count_)) l.taken = l.sent.load(std::memory_order_relaxed);
}

}  // namespace zbpp
