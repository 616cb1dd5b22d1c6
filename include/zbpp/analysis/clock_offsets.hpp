// SPDX-License-Identifier: Apache-2.0
//
// How far the clocks of ranks are apart, and how well that is known: found by the messages of a
// step, each of which arrives after it is sent.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/message_record.hpp>
#include <zbpp/model/timeline.hpp>

#include <vector>

namespace zbpp {

/// Says how far the clock of a rank is ahead of that of rank 0.
struct clock_offset {
  ticks ahead = 0;  ///< below 0 where it is behind
  ticks error = 0;  ///< the true value is no further away than this

  friend bool operator==(clock_offset const&, clock_offset const&) = default;
};

/// Finds the offsets of all clocks. A message limits how far the clock of its receiver can be
/// behind that of its sender. Chains of such limits, from rank 0 to a rank and back, leave an
/// interval: its middle is the offset, half of its width the error. By these offsets no message
/// arrives before it is sent, but for the drift.
/// @param messages  of all ranks, with all times known
/// @param drift  by how much clocks run apart at most, as a share of the time that passes: limits
///               are wider by that share of the step, so that they hold all the time. NTP sets a
///               clock right by 5e-4 at most
/// @return by rank, the first one being 0
/// @throws error (bad_argument) when a time is unknown, a rank exchanges messages with rank 0 in
///         one direction only, or not at all, or limits contradict each other
/// @complexity O(messages + ranks^3)
/// @source Attiya, Herzberg, Rajsbaum, Optimal clock synchronization under different delay
///         assumptions, 1996: limits are lengths, and the shortest paths give the tightest of them
[[nodiscard]] std::vector<clock_offset> clock_offsets(
    message_record const& messages, int ranks, double drift = 5e-4);

/// Sets the clocks of all ranks by that of rank 0.
/// @return what was subtracted from each, and its error
/// @throws error (bad_argument) as `clock_offsets`
std::vector<clock_offset> align_clocks(
    timeline& step, message_record& messages, double drift = 5e-4);

/// Counts a step and its messages from the first start of a pass. Unknown times stay unknown.
void from_first_start(timeline& step, message_record& messages);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/clock_offsets.ipp>
#endif
