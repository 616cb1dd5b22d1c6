// SPDX-License-Identifier: Apache-2.0
//
// Times of messages, read from measured steps; also from those of ranks whose clocks have nothing
// to do with each other.
#pragma once

#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/timeline.hpp>

#include <span>
#include <vector>

namespace zbpp {

/// Sets the clocks of the ranks by each other: afterwards the quickest message from a rank to the
/// next one takes as long as the quickest one back. Ranks that exchange nothing with the rank
/// before them, or in one direction only, keep their clocks.
/// @param step  the measured passes of all ranks
/// @throws error (bad_argument) when it has other ranks than the placement, or a stage that the
///         placement does not have
/// @source Cristian, Probabilistic clock synchronization, 1989: the least round trip
void align_clocks(timeline& step, placement const& placement);

/// A message between ranks that its receiver waited for.
struct awaited_message {
  int from = 0;
  int to = 0;
  /// From the end of the pass that made it to the start of the pass that needed it.
  ticks took = 0;

  friend bool operator==(awaited_message const&, awaited_message const&) = default;
};

/// Finds the messages between ranks that their receiver waited for: only then does the start of its
/// pass say when the message arrived.
/// @param step  the measured passes of all ranks, on one clock
/// @throws error (bad_argument) as `align_clocks`
[[nodiscard]] std::vector<awaited_message> awaited_messages(
    timeline const& step, placement const& placement);

/// Gives the problem of measured steps: `costs_from`, and messages that all take as long as a
/// quantile of those that were waited for; where none was, transfers stay as they are stated.
/// @param steps     the measured passes of all ranks, on one clock
/// @param quantile  0 to 1; 0.5 is the median
/// @throws error (bad_argument) as `costs_from`, or when the quantile does not lie between 0 and 1
[[nodiscard]] problem costs_and_messages_from(
    std::span<timeline const> steps, problem const& stated, double quantile = 0.5);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/message_times.ipp>
#endif
