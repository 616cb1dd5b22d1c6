// SPDX-License-Identifier: Apache-2.0
//
// How channels are made, and how a step ends on them.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/in_process.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace zbpp {

ZBPP_INLINE in_process::lane::lane(channel const& ends)
    : from(ends.from),
      to(ends.to),
      ring(std::bit_ceil(std::max<std::size_t>(detail::index(ends.in_flight), 1))),
      mask(ring.size() - 1) {}

ZBPP_INLINE in_process::in_process(state_map const& states, std::vector<channel> const& channels)
    : ranks_(detail::index(states.ranks())), states_(states) {
  for (auto const& c : channels) lanes_.push_back(std::make_unique<lane>(c));
}

ZBPP_INLINE void in_process::abort() noexcept {
  for (auto const& r : ranks_) notify(r.wake);
}

ZBPP_INLINE void in_process::discard(int channel, std::int32_t count) noexcept {
  auto& l = lane_of(channel);
  if (l.open != 0) open(l, -l.open);
  // Release: as in take.
  l.consumed.store(l.received + static_cast<std::uint32_t>(count), std::memory_order_release);
}

ZBPP_INLINE void in_process::end_step(int rank) noexcept {
  for (auto const& l : lanes_)
    if (l->to == rank) notify(ranks_[detail::index(l->from)].wake);
}

ZBPP_INLINE bool in_process::begin_step(int rank) noexcept {
  for (auto const& l : lanes_)
    // Acquire: pairs with the release in take, so that the copies are over.
    if (l->from == rank &&
        l->consumed.load(std::memory_order_acquire) != l->published.load(std::memory_order_relaxed))
      return false;
  for (auto const& l : lanes_) {
    if (l->from == rank) {
      l->sent = l->published.load(std::memory_order_relaxed);
      l->retire_until(l->sent);
    }
    if (l->to == rank) l->received = l->consumed.load(std::memory_order_relaxed);
  }
  return true;
}

ZBPP_INLINE void in_process::drain() noexcept {
  for (auto& l : lanes_) {
    l->sent = l->published.load(std::memory_order_relaxed);
    l->retire_until(l->sent);
    l->received = l->sent;
    l->consumed.store(l->sent, std::memory_order_relaxed);
    l->acknowledged.store(l->sent, std::memory_order_relaxed);
    if (l->open != 0) open(*l, -l->open);
  }
  states_.drain();
}

}  // namespace zbpp
