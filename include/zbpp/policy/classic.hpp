// SPDX-License-Identifier: Apache-2.0
//
// The schedules that came before zero bubble: GPipe and 1F1B. Their backward pass is one BW.
#pragma once

#include <zbpp/policy/one_chunk.hpp>

#include <string_view>

namespace zbpp {

/// Runs all F, then all BW: the simplest order, and the one that keeps all activations.
/// @source arXiv 1811.06965
struct gpipe {
  static constexpr std::string_view name = "gpipe";
  static constexpr std::string_view title = "GPipe";
  static constexpr std::string_view summary = "all forwards, then all backwards";

  /// @throws error (unsupported_problem) when the placement is not linear
  [[nodiscard]] schedule operator()(problem const& problem) const {
    return detail::one_chunk(problem, title, [&](int) {
      return detail::one_chunk_rule{.warm_up = problem.microbatches(), .fused = true};
    });
  }
};

/// Alternates one F and one BW after a warm-up that fills the pipeline.
/// @source arXiv 2104.04473 sec. 2.2; arXiv 2401.10241 fig. 2
struct one_f_one_b {
  static constexpr std::string_view name = "one_f_one_b";
  static constexpr std::string_view title = "1F1B";
  static constexpr std::string_view summary = "one forward, one backward";

  /// @throws error (unsupported_problem) when the placement is not linear
  [[nodiscard]] schedule operator()(problem const& problem) const {
    return detail::one_chunk(problem, title, [&](int rank) {
      return detail::one_chunk_rule{.warm_up = problem.ranks() - 1 - rank, .fused = true};
    });
  }
};

}  // namespace zbpp
