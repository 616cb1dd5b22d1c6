// SPDX-License-Identifier: Apache-2.0
//
// How an explanation becomes two timelines.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/explanation_drawing.hpp>
#include <zbpp/model/pass.hpp>

#include <map>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE std::vector<named_timeline> explanation_drawing(
    plan const& planned, timeline const& measured, explanation const& step) {
  std::map<pass, ticks> planned_times;
  for (auto const& timed : planned.timeline().all())
    planned_times[timed.pass] = timed.end - timed.start;
  named_timeline drawn{"measured", from_first_start(measured)};
  for (int rank = 0; rank < measured.ranks(); ++rank)
    for (auto const& timed : drawn.line[rank]) {
      auto const known = planned_times.find(timed.pass);
      detail::require(
          known != planned_times.end(),
          "explanation_drawing: the step has a pass that the plan does not; give the step that the "
          "plan ran");
      auto const foreseen = timed.start + known->second;
      bool const is_marked = timed.pass.is_paired;  // with the F that it runs beside
      if (timed.end > foreseen && !is_marked) drawn.longer.push_back({rank, foreseen, timed.end});
    }
  for (auto const& p : step.critical) drawn.path.push_back({p.rank, p.start, p.end});
  return {{"planned", planned.timeline()}, std::move(drawn)};
}

}  // namespace zbpp
