// SPDX-License-Identifier: Apache-2.0
//
// Interleaved orders: several chunks per rank on a looped placement, so that the pipeline fills and
// drains in shorter steps. Microbatches go in groups, each group through the chunks in turn. 1F1B-I
// has a BW as its backward pass; the grouped order has B and W, and sizes groups.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <string_view>
#include <vector>

namespace zbpp {

/// Runs 1F1B over v chunks per rank: microbatches go in groups, each group through the chunks in
/// turn. There are as many groups as p goes into m, at least one, of sizes as equal as can be, the
/// larger first; so they have p microbatches each where m is a multiple of p.
///
/// For even chunks, v > 1, a hop T_comm and m a multiple of p, `simulate` gives it the cost
/// m S + (p - 1) S / v + (2 p v - 2) T_comm, where S is the work of a rank for one microbatch. The
/// bubble rates printed for 1F1B-I follow from p T_comm less. Without hops the cost is the same for
/// any m >= p. For g microbatches in the largest group a rank i keeps min((v - 1) g +
/// 2 (p - 1 - i) + 1, v m) chunks.
/// @source arXiv 2104.04473 sec. 2.2; arXiv 2401.10241v1 table 5; the groups are those of PyTorch's
///         ScheduleInterleaved1F1B, which takes equal ones only
struct interleaved {
  static constexpr std::string_view name = "interleaved";
  static constexpr std::string_view title = "1F1B-I";
  static constexpr std::string_view summary = "1F1B over several chunks per rank";
  /// @return whether it takes a placement, with so many microbatches
  [[nodiscard]] static bool suits(placement const& placement, int /*microbatches*/) noexcept {
    return placement.is_looped();
  }

  /// @throws error (unsupported_problem) unless the placement is looped
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

/// Runs groups of g microbatches through v chunks per rank, with B and W apart: after g (v - 1) +
/// p - i forward passes, rank i repeats B, W, F. There are as few groups as can be, of sizes as
/// equal as can be. It keeps fewer activations than 1F1B-I, the fewer the smaller g is.
///
/// A rank i keeps at most min(g (v - 1) + p - i, v m) chunks. For even chunks, no hops, and m a
/// multiple of g, the bubble is (p - 1)(F + B) where g = p, all times those of a chunk; for equal
/// times it is (p - 1)(F + B) + (p - g)(v - 1)(F + B - W) for any g. Fused it is (p - 1)(F + B + W)
/// where g = p.
/// @source arXiv 2503.01328 sec. 3; groups where g does not divide m are ours
struct grouped_interleaved {
  static constexpr std::string_view name = "grouped_interleaved";
  static constexpr std::string_view title = "grouped 1F1B-I";
  static constexpr std::string_view summary = "1F1B-I in smaller groups, with W apart; less memory";
  /// @return whether it takes a placement, with so many microbatches
  [[nodiscard]] static bool suits(placement const& placement, int /*microbatches*/) noexcept {
    return placement.is_looped();
  }

  /// Most microbatches in a group, from (p + 1) / 2 to p; 0 for the least of these.
  int group = 0;
  bool fused = false;  ///< B and W run as BW

  /// @throws error (unsupported_problem) unless the placement is looped; (bad_argument) when
  ///         `group` is not 0 and out of its range
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

namespace detail {

/// Says what sets the interleaved orders apart.
struct interleaved_rule {
  int groups = 1;                 ///< of microbatches, sizes as equal as can be, the larger first
  std::vector<int> warm_up = {};  ///< of each rank: F before its first backward pass
  bool fused = false;             ///< B and W run as BW
};

[[nodiscard]] constexpr int largest_group(int microbatches, int groups) noexcept {
  return (microbatches + groups - 1) / groups;
}

/// Makes the rule of a number of groups. A rank runs all chunks of a group but the last, and then
/// `ahead` F for each rank that a microbatch passes from here to the last one.
[[nodiscard]] interleaved_rule rule_for_groups(
    problem const& problem, int groups, int ahead, bool fused);

/// Orders the passes of a looped placement: warm-up F, then backward passes and F in turn, each B
/// with its W after it.
[[nodiscard]] schedule interleaved_order(problem const& problem, interleaved_rule const& rule);

}  // namespace detail
}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/policy/impl/interleaved.ipp>
#endif
