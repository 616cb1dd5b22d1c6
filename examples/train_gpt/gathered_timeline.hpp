// SPDX-License-Identifier: Apache-2.0
//
// The timeline of a step whose ranks are processes, each with a clock of its own.
#pragma once

#include "message_times.hpp"
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>

#include <cstddef>

namespace gpt {

/// Makes the timeline of a step on all ranks, which each measured for itself.
/// @param order  what the ranks ran
[[nodiscard]] inline zbpp::timeline gather_timeline(
    zbpp::asio::rendezvous& meeting, zbpp::schedule const& order, zbpp::timeline const& own) {
  zbpp::asio::wire_writer to;
  for (auto const& timed : own[meeting.rank()]) to.put(timed.start).put(timed.end);
  auto const parts = meeting.all_gather(to.bytes());
  zbpp::timeline all;
  for (int rank = 0; rank < order.ranks(); ++rank) {
    zbpp::asio::wire_reader from(parts[static_cast<std::size_t>(rank)]);
    for (auto const& pass : order.passes(rank)) {
      auto const start = from.get<zbpp::ticks>();
      all.push({pass, start, from.get<zbpp::ticks>()});
    }
    from.expect_end();
    all.end_row();
  }
  align_clocks(all, order.placement(), order.microbatches());
  return all;
}

}  // namespace gpt
