// SPDX-License-Identifier: Apache-2.0
//
// How 1F1B-I orders the passes of each rank.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/policy.hpp>

#include <algorithm>
#include <string>
#include <utility>

namespace zbpp {

ZBPP_INLINE schedule interleaved::operator()(problem const& problem) const {
  auto const p = problem.ranks();
  auto const m = problem.microbatches();
  detail::support(
      problem.placement().is_looped(),
      title,
      "needs a looped placement; this one is " + problem.placement().name());
  detail::support(
      m % p == 0,
      title,
      "needs a multiple of " + std::to_string(p) + " microbatches, one for each rank; there are " +
          std::to_string(m));
  auto const chunks = problem.stages() / p;
  auto const all = chunks * m;

  // The i-th F or BW of a rank: which microbatch, and which chunk counted in running order.
  auto microbatch_of = [&](int i) { return i / (p * chunks) * p + i % p; };
  auto chunk_of = [&](int i) { return i / p % chunks; };

  rows<pass> passes;
  passes.reserve(detail::index(p), detail::index(p) * detail::index(all) * 2);
  for (int rank = 0; rank < p; ++rank) {
    auto const pairs_ahead = chunks == 1 ? p - 1 - rank : (chunks - 1) * p + 2 * (p - 1 - rank);
    auto const warm_up = std::min(pairs_ahead, all);
    for (int f = 0, b = 0; b < all;) {
      if (f < all) {
        passes.push({pass_kind::forward, chunk_of(f) * p + rank, microbatch_of(f)});
        if (++f <= warm_up) continue;
      }
      passes.push({pass_kind::backward, (chunks - 1 - chunk_of(b)) * p + rank, microbatch_of(b)});
      ++b;
    }
    passes.end_row();
  }
  return {problem.placement(), m, std::move(passes)};
}

}  // namespace zbpp
