// SPDX-License-Identifier: Apache-2.0
//
// How a record of messages gets its places.
#pragma once

#include <zbpp/analysis/detail/record_places.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zbpp::detail {

ZBPP_INLINE message_record
record_places(program const& program, traffic const& messages, std::span<int const> ranks) {
  auto const is_here = [&](int rank) { return std::ranges::find(ranks, rank) != ranks.end(); };
  std::vector<std::vector<timed_message>> places(index(messages.map().size()));
  for (int rank = 0; rank < program.ranks(); ++rank) {
    auto const row = program.instructions(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto const& note = messages.notes(rank)[i];
      if (!row[i].is_pass() || note.channel == channel_map::none) continue;
      auto const from = messages.map().ends(note.channel).first;
      if (!is_here(from) && !is_here(rank)) continue;
      auto& of_channel = places[index(note.channel)];
      auto const number = index(note.sequence);
      if (of_channel.size() <= number) of_channel.resize(number + 1);
      of_channel[number] = {.pass = row[i].as_pass(), .from = from, .to = rank};
    }
  }
  return message_record(places);
}

}  // namespace zbpp::detail
