// SPDX-License-Identifier: Apache-2.0
//
// How the interleaved orders arrange the passes of each rank.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/policy.hpp>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp {
namespace detail {

/// @throws error (unsupported_problem) unless the placement is looped
ZBPP_INLINE void require_looped(problem const& problem, std::string_view title) {
  support(
      problem.placement().is_looped(),
      title,
      "needs a looped placement; this one is " + problem.placement().name());
}

ZBPP_INLINE interleaved_rule
rule_for_groups(problem const& problem, int groups, int ahead, bool fused) {
  auto const p = problem.ranks();
  auto const m = problem.microbatches();
  auto const chunks = problem.stages() / p;
  // With groups of less than half the ranks, rank 0 could otherwise run so far ahead that it waits
  // for a gradient that the last rank makes later than the F it waits for.
  auto const most_ahead = 2 * (m / groups);
  interleaved_rule rule{.groups = groups, .fused = fused};
  for (int rank = 0; rank < p; ++rank)
    rule.warm_up.push_back(
        (chunks - 1) * largest_group(m, groups) + std::min(ahead * (p - 1 - rank) + 1, most_ahead));
  return rule;
}

ZBPP_INLINE schedule interleaved_order(problem const& problem, interleaved_rule const& rule) {
  auto const p = problem.ranks();
  auto const m = problem.microbatches();
  auto const chunks = problem.stages() / p;
  auto const all = chunks * m;

  // The order of all F of a rank; B and W have the same with the chunks from the last to the first.
  struct chunk_pass {
    int chunk;
    int microbatch;
  };
  std::vector<chunk_pass> order;
  for (int group = 0, first = 0; group < rule.groups; ++group) {
    auto const size = m / rule.groups + (group < m % rule.groups ? 1 : 0);
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int i = 0; i < size; ++i) order.push_back({chunk, first + i});
    first += size;
  }

  rows<pass> passes;
  passes.reserve(index(p), index(p) * index(all) * (rule.fused ? 2 : 3));
  for (int rank = 0; rank < p; ++rank) {
    auto const push = [&](pass_kind kind, int i) {
      auto const [chunk, microbatch] = order[index(i)];
      auto const from_start = kind == pass_kind::forward ? chunk : chunks - 1 - chunk;
      passes.push({kind, from_start * p + rank, microbatch});
    };
    auto const warm_up = std::min(rule.warm_up[index(rank)], all);
    int f = 0;
    while (f < warm_up) push(pass_kind::forward, f++);
    for (int b = 0; b < all; ++b) {
      push(rule.fused ? pass_kind::backward : pass_kind::backward_input, b);
      if (!rule.fused) push(pass_kind::backward_weight, b);
      if (f < all) push(pass_kind::forward, f++);
    }
    passes.end_row();
  }
  return {problem.placement(), m, std::move(passes)};
}

}  // namespace detail

ZBPP_INLINE schedule interleaved::operator()(problem const& problem) const {
  detail::require_looped(problem, title);
  auto const groups = std::max(problem.microbatches() / problem.ranks(), 1);
  auto const ahead = problem.placement().is_linear() ? 1 : 2;
  return detail::interleaved_order(problem, detail::rule_for_groups(problem, groups, ahead, true));
}

ZBPP_INLINE schedule grouped_interleaved::operator()(problem const& problem) const {
  detail::require_looped(problem, title);
  auto const p = problem.ranks();
  auto const least = (p + 1) / 2;
  if (group != 0 && (group < least || group > p))
    throw error(errc::bad_argument) + "grouped_interleaved::group is " + group + "; on " + p +
        " ranks it lies between " + least + " and " + p;
  auto const most = group == 0 ? least : group;
  auto const groups = (problem.microbatches() + most - 1) / most;
  return detail::interleaved_order(problem, detail::rule_for_groups(problem, groups, 1, fused));
}

}  // namespace zbpp
