// SPDX-License-Identifier: Apache-2.0
//
// STP, synergistic tensor and pipeline parallelism: on a V, F and BW of one chunk run in pairs, so
// that each hides the collectives of the other.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <string_view>

namespace zbpp {

/// Pairs F of a chunk with B or BW of the same chunk from the end of the warm-up on, and keeps W
/// back at the ends, where it fills holes.
///
/// Passes are pairs on stages that take less time for both (`overlapped`, `overlapped_fused`);
/// elsewhere they run one after the other. Where the source runs W of a stage out of turn, which
/// changes the bits of its gradients, an older W stands here in place of it. The source also runs
/// two F, and an F beside a W, at the same time; here they run in turn. Rank i keeps the
/// activations of 3p + 1 chunks, and what W needs of i - 1 more.
/// @source arXiv 2510.27257; github.com/MICLAB-BUPT/STP
struct stp {
  static constexpr std::string_view name = "stp";
  static constexpr std::string_view title = "STP";
  static constexpr std::string_view summary =
      "F and B of one chunk in pairs, to hide collectives of tensor parallelism";
  /// @return whether it takes a placement, with so many microbatches
  [[nodiscard]] static bool suits(placement const& placement, int microbatches) noexcept {
    return placement.is_v_shape() && microbatches >= 3 * placement.ranks() - 1;
  }

  /// @throws error (unsupported_problem) when the placement is no V, or microbatches < 3p - 1
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/policy/impl/stp.ipp>
#endif
