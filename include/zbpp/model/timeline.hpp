// SPDX-License-Identifier: Apache-2.0
//
// A timeline: when each pass ran, planned by `simulate` or measured by the engine. What it cost and
// how much of it was bubble follow from it alone.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>

#include <algorithm>

namespace zbpp {

/// Says when one pass ran, in ticks from the start of the step.
struct timed_pass {
  pass what;
  ticks start = 0;
  ticks end = 0;

  friend bool operator==(timed_pass const&, timed_pass const&) = default;
};

/// Holds the timed passes of every rank, in the order in which they ran.
using timeline = rows<timed_pass>;

/// @return the greatest time that a rank spends between the start of its first and the end of its
///         last pass
/// @source arXiv 2401.10241 sec. 5.3
[[nodiscard]] inline ticks cost(timeline const& line) noexcept {
  ticks most = 0;
  for (int rank = 0; rank < line.ranks(); ++rank)
    if (auto const row = line[rank]; !row.empty())
      most = std::max(most, row.back().end - row.front().start);
  return most;
}

/// @return the end of the last pass of all, from the start of the step
[[nodiscard]] inline ticks makespan(timeline const& line) noexcept {
  ticks last = 0;
  for (auto const& timed : line.all()) last = std::max(last, timed.end);
  return last;
}

/// @return how long a rank works; recomputing is not work that a plain step would do
[[nodiscard]] inline ticks busy(timeline const& line, int rank) noexcept {
  ticks sum = 0;
  for (auto const& timed : line[rank])
    if (timed.what.kind != pass_kind::recompute) sum += timed.end - timed.start;
  return sum;
}

/// @return the share of the ranks' time that is lost, 1 - sum of busy / (ranks * cost); 0 for an
///         empty timeline. For even ranks this is the paper's (cost - m(F+B+W)) / cost.
/// @source arXiv 2401.10241 sec. 5.3
[[nodiscard]] inline double bubble_rate(timeline const& line) noexcept {
  auto const whole = cost(line);
  if (whole == 0) return 0;
  double work = 0;
  for (int rank = 0; rank < line.ranks(); ++rank) work += static_cast<double>(busy(line, rank));
  return 1 - work / (static_cast<double>(line.ranks()) * static_cast<double>(whole));
}

}  // namespace zbpp
