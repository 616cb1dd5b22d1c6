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

ZBPP_INLINE in_process::lane::lane(int receiver, std::size_t depth)
    : to(receiver), ring(std::bit_ceil(std::max<std::size_t>(depth, 1))), mask(ring.size() - 1) {}

ZBPP_INLINE in_process::in_process(int ranks, std::vector<channel> const& channels)
    : ranks_(detail::index(ranks)) {
  for (auto const& c : channels)
    lanes_.push_back(std::make_unique<lane>(c.to, detail::index(c.in_flight)));
}

ZBPP_INLINE void in_process::abort() noexcept {
  for (auto const& r : ranks_) notify(r.wake);
}

ZBPP_INLINE void in_process::drain() noexcept {
  for (auto& l : lanes_) {
    retire(
        static_cast<int>(&l - lanes_.data()),
        static_cast<std::int32_t>(l->published.load(std::memory_order_relaxed)));
    l->published.store(0, std::memory_order_relaxed);
    l->retired = 0;
    if (l->open != 0) open(static_cast<int>(&l - lanes_.data()), -l->open);
  }
}

}  // namespace zbpp
