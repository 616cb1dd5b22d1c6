// SPDX-License-Identifier: Apache-2.0
//
// The handcrafted zero-bubble schedules of one chunk a rank: ZB-H1 keeps the memory of 1F1B and a
// third of its bubble, ZB-H2 spends twice the memory to have none when F, B and W take equal time.
#pragma once

#include <zbpp/policy/one_chunk.hpp>

#include <string_view>

namespace zbpp {

/// Puts W where 1F1B idles, within the memory of 1F1B. With even ranks, no transfers, m >= p and
/// W <= F its bubble is (p - 1)(F + B - W).
/// @source arXiv 2401.10241 sec. 2.1, fig. 3 top
struct zb_h1 {
  static constexpr std::string_view name = "zb_h1";
  static constexpr std::string_view title = "ZB-H1";
  static constexpr std::string_view summary = "W fills the bubble, memory of 1F1B";

  /// @throws error (unsupported_problem) when the placement is not linear
  [[nodiscard]] schedule operator()(problem const& problem) const {
    return detail::one_chunk(problem, title, [&](int rank) {
      return detail::one_chunk_rule{.warm_up = problem.ranks() - 1 - rank, .w_delay = rank};
    });
  }
};

/// Runs more F before the first B, so that B never waits when F, B and W take equal time. With even
/// ranks, no transfers, m >= 2p - 1, W <= F and W <= B its bubble is (p - 1)(F + B - 2W).
/// @source arXiv 2401.10241 sec. 2.2, fig. 3 bottom
struct zb_h2 {
  static constexpr std::string_view name = "zb_h2";
  static constexpr std::string_view title = "ZB-H2";
  static constexpr std::string_view summary = "no bubble for equal times, twice the memory";

  /// @throws error (unsupported_problem) when the placement is not linear
  [[nodiscard]] schedule operator()(problem const& problem) const {
    return detail::one_chunk(problem, title, [&](int rank) {
      return detail::one_chunk_rule{
          .warm_up = 2 * (problem.ranks() - 1 - rank), .w_delay = 2 * rank};
    });
  }
};

}  // namespace zbpp
