// SPDX-License-Identifier: Apache-2.0
//
// Interleaved 1F1B: several chunks per rank on a looped placement, so that the pipeline fills and
// drains in shorter steps. Its backward pass is one BW.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

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
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/policy/impl/interleaved.ipp>
#endif
