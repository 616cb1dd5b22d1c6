// SPDX-License-Identifier: Apache-2.0
//
// What analysis/largest_messages.hpp declares.
#pragma once

#include <zbpp/analysis/largest_messages.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zbpp {

ZBPP_INLINE std::vector<bytes> largest_messages(traffic const& messages, problem const& problem) {
  using detail::index;
  auto const& map = messages.map();
  std::vector<bytes> largest(index(map.size()), 0);
  std::vector<bool> is_open(largest.size(), false);
  auto const note = [&](int channel, bytes size) {
    if (channel == channel_map::none) return;
    largest[index(channel)] = std::max(largest[index(channel)], size);
    if (size == 0) is_open[index(channel)] = true;
  };
  for (int s = 0; s + 1 < problem.stages(); ++s) {
    note(map.of_activation(s), problem.costs(s).edge);
    note(map.of_gradient(s + 1), problem.costs(s).edge);
  }
  for (std::size_t c = 0; c < largest.size(); ++c)
    if (is_open[c]) largest[c] = 0;
  return largest;
}

}  // namespace zbpp
