// SPDX-License-Identifier: Apache-2.0
//
// The schedules of one chunk per rank. GPipe and 1F1B came before zero bubble; their backward pass
// is one BW. ZB-H1 keeps the memory of 1F1B and a third of its bubble; ZB-H2 spends twice the
// memory to have none when F, B and W take equal time.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/policy/policy.hpp>

#include <string_view>
#include <vector>

namespace zbpp {

/// Runs all F, then all BW: the simplest order, and the one that keeps all activations.
/// @source arXiv 1811.06965
struct gpipe {
  static constexpr std::string_view name = "gpipe";
  static constexpr std::string_view title = "GPipe";
  static constexpr std::string_view summary = "all forwards, then all backwards";
  /// @return whether it takes a placement, with so many microbatches
  [[nodiscard]] static bool suits(placement const& placement, int /*microbatches*/) noexcept {
    return placement.is_linear();
  }

  /// @throws error (unsupported_problem) when the placement is not linear
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

/// Alternates one F and one BW after a warm-up that fills the pipeline.
/// @source arXiv 2104.04473 sec. 2.2; arXiv 2401.10241 fig. 2
struct one_f_one_b {
  static constexpr std::string_view name = "one_f_one_b";
  static constexpr std::string_view title = "1F1B";
  static constexpr std::string_view summary = "one forward, one backward";
  /// @return whether it takes a placement, with so many microbatches
  [[nodiscard]] static bool suits(placement const& placement, int /*microbatches*/) noexcept {
    return placement.is_linear();
  }

  /// @throws error (unsupported_problem) when the placement is not linear
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

/// Puts W where 1F1B idles, within the memory of 1F1B. With even ranks, no transfers, m >= p and
/// W <= F its bubble is (p - 1)(F + B - W).
/// @source arXiv 2401.10241 sec. 2.1, fig. 3 top
struct zb_h1 {
  static constexpr std::string_view name = "zb_h1";
  static constexpr std::string_view title = "ZB-H1";
  static constexpr std::string_view summary = "W fills the bubble, memory of 1F1B";
  /// @return whether it takes a placement, with so many microbatches
  [[nodiscard]] static bool suits(placement const& placement, int /*microbatches*/) noexcept {
    return placement.is_linear();
  }

  /// @throws error (unsupported_problem) when the placement is not linear
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

/// Runs more F before the first B, so that B never waits when F, B and W take equal time. With even
/// ranks, no transfers, m >= 2p - 1, W <= F and W <= B its bubble is (p - 1)(F + B - 2W).
/// @source arXiv 2401.10241 sec. 2.2, fig. 3 bottom
struct zb_h2 {
  static constexpr std::string_view name = "zb_h2";
  static constexpr std::string_view title = "ZB-H2";
  static constexpr std::string_view summary = "no bubble for equal times, twice the memory";
  /// @return whether it takes a placement, with so many microbatches
  [[nodiscard]] static bool suits(placement const& placement, int /*microbatches*/) noexcept {
    return placement.is_linear();
  }

  /// @throws error (unsupported_problem) when the placement is not linear
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

namespace detail {

/// Says what sets the schedules of one chunk per rank apart, for one rank.
struct one_chunk_rule {
  int warm_up = 0;     ///< F before the first pair of F and B
  int w_delay = 0;     ///< how many B run before each is answered by a W
  bool fused = false;  ///< B and W run as BW
};

/// Orders the passes of a linear placement: warm-up F, then pairs of F and B, then the B that are
/// left; after each B the oldest W, once more than `w_delay` B have run; then the W that are left.
/// @param rules  one per rank
/// @throws error (unsupported_problem) when the placement is not linear
/// @source arXiv 2401.10241 sec. 2, fig. 3
[[nodiscard]] schedule one_chunk_order(
    problem const& problem, std::string_view title, std::vector<one_chunk_rule> const& rules);

/// Orders them as `rule` says when it is called with each rank.
/// @throws error (unsupported_problem) when the placement is not linear
template <class Rule>
[[nodiscard]] schedule one_chunk(problem const& problem, std::string_view title, Rule rule) {
  std::vector<one_chunk_rule> rules;
  for (int rank = 0; rank < problem.ranks(); ++rank) rules.push_back(rule(rank));
  return one_chunk_order(problem, title, rules);
}

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/policy/impl/one_chunk.ipp>
#endif
