// SPDX-License-Identifier: Apache-2.0
//
// DualPipeV: the bidirectional schedule DualPipe cut in half, so that its two directions are the
// two legs of a V. In its steady state an F and a BW of different chunks stand side by side.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <string_view>

namespace zbpp {

/// Runs F of one chunk and BW of the other in pairs after a warm-up from both ends of the V; at the
/// end W is kept back to fill the holes.
///
/// On ranks whose stages take less time for F and B together (`overlapped`) the F and BW of these
/// are pairs, but for the first F and BW of the last rank, as in the source; elsewhere they run one
/// after the other. Without pairs, where W <= B <= F <= B + W, all of one
/// stage, messages are free and ranks even, `simulate` then gives it the bubble (p - 1)(F + B - W).
/// The printed (PP/2 - 1)(F&B + B - 3W), where PP = 2p, F&B = F + B + W and its B is our B + W, is
/// (p - 1) B more. Ranks keep the activations of 2p + 1 chunks, one more than with ZB-V.
/// @source github.com/deepseek-ai/DualPipe
struct dualpipe_v {
  static constexpr std::string_view name = "dualpipe_v";
  static constexpr std::string_view title = "DualPipeV";
  static constexpr std::string_view summary = "F and BW in pairs, to hide messages";
  /// @return whether it takes a placement, with so many microbatches
  [[nodiscard]] static bool suits(placement const& placement, int microbatches) noexcept {
    return placement.is_v_shape() && microbatches >= 2 * placement.ranks();
  }

  /// @throws error (unsupported_problem) when the placement is not a V, or has fewer than two
  ///         microbatches per rank
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/policy/impl/dualpipe_v.ipp>
#endif
