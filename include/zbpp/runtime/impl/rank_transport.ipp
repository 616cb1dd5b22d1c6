// SPDX-License-Identifier: Apache-2.0
//
// How a rank's channels are made, and how a step begins on them.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/rank_transport.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace zbpp {

ZBPP_INLINE rank_transport::rank_transport(
    int rank,
    std::vector<channel> const& channels,
    std::vector<bytes> const& largest,
    bytes undeclared,
    bool notes_arrivals)
    : rank_(rank), ends_(channels.size()) {
  detail::require(
      channels.size() == largest.size(), "a transport gets one largest size per channel");
  for (std::size_t c = 0; c < channels.size(); ++c) {
    auto const& ends = channels[c];
    detail::require(largest[c] >= 0, "the largest message of a channel has at least 0 bytes");
    detail::require(
        ends.slots >= 0 && ends.in_flight >= 0, "the depths of a channel are at least 0");
    if (ends.from == rank)
      ends_[c].sent = std::make_unique<sent_ring>(ends, largest[c] > 0 ? largest[c] : undeclared);
    if (ends.to == rank) ends_[c].received = std::make_unique<received_ring>(ends, notes_arrivals);
  }
}

ZBPP_INLINE bool rank_transport::is_flushed() const noexcept {
  return std::ranges::all_of(ends_, [](channel_end const& each) {
    return each.sent == nullptr || each.sent->is_flushed();
  });
}

ZBPP_INLINE bool rank_transport::begin_step(int rank) {
  if (!is_flushed() || (states_ != nullptr && !states_->begin_step(rank))) return false;
  release_all();
  return true;
}

ZBPP_INLINE void rank_transport::drain() {
  if (states_ != nullptr) states_->drain();
  release_all();
}

ZBPP_INLINE void rank_transport::release_all() {
  for (int c = 0; c < channels(); ++c) {
    if (sent(c) != nullptr) sent(c)->drain();
    if (received(c) != nullptr) received(c)->drain([&](std::size_t place) { give_up(c, place); });
    if (end(c).open != 0) open(c, -end(c).open);
    end(c).taken = 0;
  }
}

}  // namespace zbpp
