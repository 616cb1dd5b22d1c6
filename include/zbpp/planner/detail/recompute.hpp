// SPDX-License-Identifier: Apache-2.0
//
// Puts recomputation into schedules of policies that know nothing of it.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Puts an R in front of each B and BW of the stages that state a time for R and have none in the
/// schedule.
[[nodiscard]] inline schedule insert_recompute(schedule order, problem const& problem) {
  std::vector<bool> lacks(index(problem.stages()));
  for (int s = 0; s < problem.stages(); ++s)
    lacks[index(s)] = problem.costs(s).recompute.has_value();
  for (auto const& p : order.passes().all())
    if (p.kind == pass_kind::recompute) lacks[index(p.stage)] = false;
  if (std::find(lacks.begin(), lacks.end(), true) == lacks.end()) return order;
  rows<pass> result;
  for (int rank = 0; rank < order.ranks(); ++rank) {
    for (auto const& p : order.passes(rank)) {
      if (p.makes_input_gradient() && lacks[index(p.stage)])
        result.push({pass_kind::recompute, p.stage, p.microbatch});
      result.push(p);
    }
    result.end_row();
  }
  return {order.placement(), order.microbatches(), std::move(result)};
}

}  // namespace zbpp::detail
