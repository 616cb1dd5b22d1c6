// SPDX-License-Identifier: Apache-2.0
//
// How states move between ranks of one process.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/detail/rank_pairs.hpp>
#include <zbpp/runtime/state_link.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE state_map::state_map(int ranks) : ranks_(ranks) {
  // The verdict on the step before, and what is told of this step.
  for (int r = 0; r + 1 < ranks; ++r) {
    add(r, r + 1, 2);
    add(r + 1, r, 2);
  }
}

// No rank sends gradients of tied weights again before the others have taken the last ones: its
// last W in a step needs passes of all ranks there, and each begins a step after those sums.
ZBPP_INLINE state_map::state_map(program const& program)
    : state_map(agrees_on_steps(program) ? program.ranks() : 0) {
  ranks_ = program.ranks();
  auto const stages = tied_stages(program);
  std::vector<int> count(detail::index(ranks_), 0);  // of tied stages, by rank
  for (int s : stages) ++count[detail::index(program.placement().rank_of(s))];
  for (int from = 0; from < ranks_; ++from)
    for (int to = 0; to < ranks_; ++to)
      if (from != to && count[detail::index(from)] > 0 && count[detail::index(to)] > 0)
        add(from, to, count[detail::index(from)]);
}

ZBPP_INLINE void state_map::add(int from, int to, int depth) {
  if (auto const known = between(from, to); known != none) {
    depths_[detail::index(known)] += depth;
    return;
  }
  auto const at = detail::place_of_pair(pairs_, from, to);
  pairs_.emplace(pairs_.begin() + at, from, to);
  depths_.insert(depths_.begin() + at, depth);
}

ZBPP_INLINE int state_map::between(int from, int to) const noexcept {
  return detail::find_pair(pairs_, from, to);
}

ZBPP_INLINE in_process_states::in_process_states(state_map const& map)
    : map_(map), wakeups_(detail::index(map.ranks())), lanes_(detail::index(map.size())) {
  for (int c = 0; c < map.size(); ++c)
    lanes_[detail::index(c)].ring.resize(detail::index(map.depth(c)));
}

ZBPP_INLINE void in_process_states::send(
    int channel, std::span<std::byte const> state, ticks arrival) {
  auto& l = lanes_[detail::index(channel)];
  auto const number = l.sent.load(std::memory_order_relaxed);
  auto& place = l.ring[number % l.ring.size()];
  place.state.assign(state.begin(), state.end());
  place.arrival = arrival;
  // Release: the receiver that sees the number sees the state. It has taken what was here before,
  // or this rank could not have gone on.
  l.sent.store(number + 1, std::memory_order_release);
  notify(wakeups_[detail::index(map_.ends(channel).second)]);
}

ZBPP_INLINE ticks in_process_states::arrival(int channel) const noexcept {
  auto const& l = lanes_[detail::index(channel)];
  // Acquire: pairs with the release in send.
  if (l.sent.load(std::memory_order_acquire) == l.taken) return not_yet;
  return l.ring[l.taken % l.ring.size()].arrival;
}

ZBPP_INLINE void in_process_states::take(int channel, std::vector<std::byte>& state) {
  auto& l = lanes_[detail::index(channel)];
  // The sender writes into the memory that comes back, once it knows that this was taken.
  std::swap(state, l.ring[l.taken % l.ring.size()].state);
  ++l.taken;
}

ZBPP_INLINE void in_process_states::drain() noexcept {
  for (auto& l : lanes_) l.taken = l.sent.load(std::memory_order_relaxed);
}

}  // namespace zbpp
