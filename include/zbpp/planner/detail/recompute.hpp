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
#include <cstddef>
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
    auto const row = order.passes(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      auto const& next = next_is_paired(row, i) ? row[i + 1] : row[i];  // R stands before a pair
      if (next.makes_input_gradient() && !row[i].is_paired && lacks[index(next.stage)])
        result.push({pass_kind::recompute, next.stage, next.microbatch});
      result.push(row[i]);
    }
    result.end_row();
  }
  return {order.placement(), order.microbatches(), std::move(result)};
}

}  // namespace zbpp::detail
