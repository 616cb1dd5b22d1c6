// SPDX-License-Identifier: Apache-2.0
//
// What analysis/hardware_queues.hpp declares.
#pragma once

#include <zbpp/analysis/deadlock.hpp>
#include <zbpp/analysis/hardware_queues.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE int hardware_queue_need::most() const noexcept {
  return of_rank.empty() ? 1 : *std::ranges::max_element(of_rank);
}

ZBPP_INLINE hardware_queue_need hardware_queues(program const& code, std::span<int const> streams) {
  detail::require(
      streams.size() == detail::index(code.ranks()) &&
          std::ranges::all_of(streams, [](int count) { return count > 0; }),
      "the streams of each rank are counted, and are at least 1");
  // A queue waits for a transfer before it goes on, so with a single one each rank runs its row
  // instruction by instruction. What it consumes it has received before, so its passes wait for
  // nothing, and only transfers can: as in one channel for all of them.
  auto reason = verify(code, channel_layout::one_per_rank);
  std::erase_if(reason, [](diagnostic const& found) { return is_remark(found.fault); });
  std::vector<int> needed(streams.size(), 1);
  if (!reason.empty()) needed.assign(streams.begin(), streams.end());
  return {std::move(needed), std::move(reason)};
}

}  // namespace zbpp
