// SPDX-License-Identifier: Apache-2.0
//
// How much memory a schedule takes on each rank, and the schedule that takes least.
#pragma once

#include <zbpp/analysis/detail/activation_count.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <vector>

namespace zbpp::detail {

/// @return the problem with so many microbatches that an order that repeats itself takes the memory
///         that it takes with all of them
[[nodiscard]] inline problem with_few_microbatches(problem const& problem) {
  constexpr int enough = 4;
  return with_microbatches(
      with_microbatch_factors(problem, {}), std::min(enough, problem.microbatches()));
}

/// Runs one microbatch after another, each from its first F to its last W: no order holds less.
/// Where B would add something for W, that is BW, which adds nothing.
[[nodiscard]] inline schedule one_by_one(problem const& problem) {
  std::vector<std::vector<pass>> passes(index(problem.ranks()));
  auto const add = [&](pass_kind kind, int s, int m) {
    passes[index(problem.placement().rank_of(s))].push_back({kind, s, m});
  };
  for (int m = 0; m < problem.microbatches(); ++m) {
    for (int s = 0; s < problem.stages(); ++s) add(pass_kind::forward, s, m);
    for (int s = problem.stages() - 1; s >= 0; --s) {
      if (problem.costs(s).recompute) add(pass_kind::recompute, s, m);
      if (problem.costs(s).output_gradient > 0) {
        add(pass_kind::backward, s, m);
      } else {
        add(pass_kind::backward_input, s, m);
        add(pass_kind::backward_weight, s, m);
      }
    }
  }
  return {problem.placement(), problem.microbatches(), passes};
}

/// @return the most bytes that each rank of a schedule holds, edges included
[[nodiscard]] inline std::vector<bytes> memory_of(schedule const& order, problem const& problem) {
  auto const sizes = problem.all_costs();
  bool const has_edges =
      std::any_of(sizes.begin(), sizes.end(), [](stage_costs const& c) { return c.edge > 0; });
  std::vector<bytes> totals;
  if (has_edges || has_pairs(order.passes().all())) {
    for (auto const& peak : peak_memory(lower(order), problem)) totals.push_back(peak.total);
    return totals;
  }
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    bytes fixed = 0;
    for (int s : problem.placement().stages_of(rank)) fixed += problem.fixed_memory(s);
    activation_count count(problem, order.passes(rank));
    bytes most = fixed;
    for (auto const& p : order.passes(rank)) {
      most = std::max(most, fixed + count.begin(p) + problem.costs(p.stage).workspace);
      count.end(p);
    }
    totals.push_back(most);
  }
  return totals;
}

}  // namespace zbpp::detail
