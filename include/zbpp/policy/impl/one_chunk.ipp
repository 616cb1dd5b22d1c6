// SPDX-License-Identifier: Apache-2.0
//
// The one generator behind GPipe, 1F1B, ZB-H1 and ZB-H2. They differ in two numbers only: how many
// F a rank runs before it alternates F and B, and how many B it lets pass before W follows.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/policy/one_chunk.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

namespace zbpp {

namespace detail {

ZBPP_INLINE schedule one_chunk_order(
    problem const& problem, std::string_view title, std::vector<one_chunk_rule> const& rules) {
  support(
      problem.placement().is_linear(),
      title,
      "needs a linear placement, one stage per rank; this one is " + problem.placement().name());
  auto const m = problem.microbatches();
  rows<pass> passes;
  passes.reserve(index(problem.ranks()), index(problem.ranks()) * index(m) * 3);
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    auto const& r = rules[index(rank)];
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

}  // namespace detail

ZBPP_INLINE schedule gpipe::operator()(problem const& problem) const {
  return detail::one_chunk(problem, title, [&](int) {
    return detail::one_chunk_rule{.warm_up = problem.microbatches(), .fused = true};
  });
}

ZBPP_INLINE schedule one_f_one_b::operator()(problem const& problem) const {
  return detail::one_chunk(problem, title, [&](int rank) {
    return detail::one_chunk_rule{.warm_up = problem.ranks() - 1 - rank, .fused = true};
  });
}

ZBPP_INLINE schedule zb_h1::operator()(problem const& problem) const {
  return detail::one_chunk(problem, title, [&](int rank) {
    return detail::one_chunk_rule{.warm_up = problem.ranks() - 1 - rank, .w_delay = rank};
  });
}

ZBPP_INLINE schedule zb_h2::operator()(problem const& problem) const {
  return detail::one_chunk(problem, title, [&](int rank) {
    return detail::one_chunk_rule{.warm_up = 2 * (problem.ranks() - 1 - rank), .w_delay = 2 * rank};
  });
}

}  // namespace zbpp
