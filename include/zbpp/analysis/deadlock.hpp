// SPDX-License-Identifier: Apache-2.0
//
// Finds out whether a program can deadlock. Transfers queue up in the order in which a rank issues
// them; one completes when it is at the head of its queue on both sides. Passes wait
// for what they consume; nothing else waits. Whatever the speeds, the outcome is the same, so
// running the program once proves or refutes it.
#pragma once

#include <zbpp/analysis/diagnostic.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/model/program.hpp>

#include <cstdint>
#include <string_view>
#include <vector>

namespace zbpp {

/// Says which transfers of a rank share one queue.
enum class channel_layout : std::uint8_t {
  one_per_rank,           ///< all of a rank's sends and receives
  one_per_pair,           ///< all between two ranks, in both directions
  one_per_directed_pair,  ///< all from one rank to another: what zbpp uses
};

/// Names a channel layout in words.
[[nodiscard]] constexpr std::string_view to_string(channel_layout layout) noexcept {
  switch (layout) {
    case channel_layout::one_per_rank: return "one channel per rank";
    case channel_layout::one_per_pair: return "one channel per rank pair";
    case channel_layout::one_per_directed_pair: return "one channel per directed pair";
  }
  return "unknown";
}

namespace detail {

/// Looks for a deadlock of a program that has no other fault.
/// @return nothing, or one diagnostic with the waiting cycle
/// @complexity O(instructions)
[[nodiscard]] std::vector<diagnostic> find_deadlock(
    program const& program, traffic const& messages, channel_layout layout);

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/deadlock.ipp>
#endif
