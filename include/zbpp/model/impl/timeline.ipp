// SPDX-License-Identifier: Apache-2.0
//
// What model/timeline.hpp declares.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/model/timeline.hpp>

#include <algorithm>

namespace zbpp {

ZBPP_INLINE ticks cost(timeline const& line) noexcept {
  ticks most = 0;
  for (int rank = 0; rank < line.ranks(); ++rank)
    if (auto const row = line[rank]; !row.empty())
      most = std::max(most, row.back().end - row.front().start);
  return most;
}

ZBPP_INLINE ticks makespan(timeline const& line) noexcept {
  ticks last = 0;
  for (auto const& timed : line.all()) last = std::max(last, timed.end);
  return last;
}

ZBPP_INLINE timeline from_first_start(timeline line) {
  if (line.size() == 0) return line;
  auto const begin = std::ranges::min(line.all(), {}, &timed_pass::start).start;
  for (int rank = 0; rank < line.ranks(); ++rank)
    for (auto& timed : line[rank]) {
      timed.start -= begin;
      timed.end -= begin;
    }
  return line;
}

ZBPP_INLINE ticks busy(timeline const& line, int rank) noexcept {
  ticks sum = 0;
  for (auto const& timed : line[rank])
    if (timed.pass.kind != pass_kind::recompute && !timed.pass.is_paired)
      sum += timed.end - timed.start;
  return sum;
}

ZBPP_INLINE double bubble_rate(timeline const& line) noexcept {
  auto const whole = cost(line);
  if (whole == 0) return 0;
  double work = 0;
  for (int rank = 0; rank < line.ranks(); ++rank) work += static_cast<double>(busy(line, rank));
  return 1 - work / (static_cast<double>(line.ranks()) * static_cast<double>(whole));
}

}  // namespace zbpp
