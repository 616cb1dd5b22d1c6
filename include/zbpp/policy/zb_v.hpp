// SPDX-License-Identifier: Apache-2.0
//
// ZB-V: two chunks per rank on a V, so that the rank which starts a microbatch also ends it. With
// equal times it has no bubble in the steady state, within the memory of 1F1B on every rank.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <string_view>

namespace zbpp {

/// Runs F, B and W of two chunks in turn after a warm-up of 2p-1 F on every rank; at the end B
/// comes first and W fills the holes. With F = B = W = 1 and at least 2p-1 microbatches, a step
/// ends after 6m + p - 1. With fewer, W fills the holes from the start on.
///
/// No rank keeps more activations than those of p microbatches. Where a memory limit is lower,
/// `greedy_auto` searches for an order that fits.
/// @source arXiv 2401.10241v1 sec. 6, fig. 8; ours: the place of W below 2p-1 microbatches
struct zb_v {
  static constexpr std::string_view name = "zb_v";
  static constexpr std::string_view title = "ZB-V";
  static constexpr std::string_view summary = "no bubble for equal times, memory of 1F1B";
  /// @return whether it takes a placement, with so many microbatches
  [[nodiscard]] static bool suits(placement const& placement, int /*microbatches*/) noexcept {
    return placement.is_v_shape();
  }

  /// @throws error (unsupported_problem) when the placement is not a V
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/policy/impl/zb_v.ipp>
#endif
