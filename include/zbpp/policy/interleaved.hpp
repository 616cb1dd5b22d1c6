// SPDX-License-Identifier: Apache-2.0
//
// Interleaved 1F1B: several chunks per rank on a looped placement, so that the pipeline fills and
// drains in shorter steps. Its backward pass is one BW.
#pragma once

#include <zbpp/policy/policy.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace zbpp {

/// Runs 1F1B over v chunks per rank: microbatches go in groups of p, each group through the chunks
/// in turn.
///
/// For even chunks, v > 1 and a hop T_comm, `simulate` gives it the cost
/// m S + (p - 1) S / v + (2 p v - 2) T_comm, where S is the work of a rank for one microbatch. The
/// bubble rates printed for 1F1B-I follow from p T_comm less.
/// @source arXiv 2104.04473 sec. 2.2; arXiv 2401.10241v1 table 5
struct interleaved {
  static constexpr std::string_view name = "interleaved";
  static constexpr std::string_view title = "1F1B-I";
  static constexpr std::string_view summary = "1F1B over several chunks per rank";

  /// @throws error (unsupported_problem) unless the placement is looped and the microbatches are a
  ///         multiple of the ranks
  [[nodiscard]] schedule operator()(problem const& problem) const {
    auto const p = problem.ranks();
    auto const m = problem.microbatches();
    detail::support(
        problem.placement().is_looped(),
        title,
        "needs a looped placement; this one is " + problem.placement().name());
    detail::support(
        m % p == 0,
        title,
        "needs a multiple of " + std::to_string(p) +
            " microbatches, one for each rank; there are " + std::to_string(m));
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
};

}  // namespace zbpp
