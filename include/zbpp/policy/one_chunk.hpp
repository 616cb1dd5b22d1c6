// SPDX-License-Identifier: Apache-2.0
//
// The one generator behind GPipe, 1F1B, ZB-H1 and ZB-H2. With one chunk a rank they differ in two
// numbers only: how many F a rank runs before it alternates F and B, and how many B it lets pass
// before W follows.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/policy/policy.hpp>

#include <algorithm>
#include <string_view>

namespace zbpp::detail {

/// Says what sets the schedules of one chunk a rank apart, for one rank.
struct one_chunk_rule {
  int warm_up = 0;     ///< F before the first pair of F and B
  int w_delay = 0;     ///< how many B run before each is answered by a W
  bool fused = false;  ///< B and W run as BW
};

/// Orders the passes of a linear placement: warm-up F, then pairs of F and B, then the B that are
/// left; after each B the oldest W, once more than `w_delay` B have run; then the W that are left.
/// @param rule  called with each rank, gives its `one_chunk_rule`
/// @throws error (unsupported_problem) when the placement is not linear
/// @source arXiv 2401.10241 sec. 2, fig. 3
template <class Rule>
[[nodiscard]] schedule one_chunk(problem const& problem, std::string_view title, Rule rule) {
  support(
      problem.placement().is_linear(),
      title,
      "needs a linear placement, one stage a rank; this one is " + problem.placement().name());
  auto const m = problem.microbatches();
  rows<pass> passes;
  passes.reserve(index(problem.ranks()), index(problem.ranks()) * index(m) * 3);
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    one_chunk_rule const r = rule(rank);
    int f = 0;
    int b = 0;
    int w = 0;
    auto backward = [&] {
      if (r.fused) {
        passes.push({pass_kind::backward, rank, b++});
        return;
      }
      passes.push({pass_kind::backward_input, rank, b++});
      if (b > r.w_delay) passes.push({pass_kind::backward_weight, rank, w++});
    };
    while (f < std::min(r.warm_up, m)) passes.push({pass_kind::forward, rank, f++});
    while (f < m) {
      passes.push({pass_kind::forward, rank, f++});
      backward();
    }
    while (b < m) backward();
    while (!r.fused && w < m) passes.push({pass_kind::backward_weight, rank, w++});
    passes.end_row();
  }
  return {problem.placement(), m, std::move(passes)};
}

}  // namespace zbpp::detail
