// SPDX-License-Identifier: Apache-2.0
//
// Policies of several chunks per rank that search within a budget for activations: V-Half and V-Min
// spend less than ZB-V, interleaved zero bubble as much as interleaved 1F1B.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/search.hpp>

#include <string_view>

namespace zbpp {

/// Keeps the activations of at most (p+2)/2 microbatches on every rank, half of 1F1B's, or less
/// where a limit of the problem is lower; both chunks of a rank are a microbatch. Static memory,
/// workspace and edges come on top. For equal times and free messages its bubble rate is at most
/// p/(2m), tested for p = 4, 5, 8, 16 and m = 3p, 8p. It takes the order of `v_min` if cheaper.
/// @source arXiv 2405.15362
struct v_half {
  static constexpr std::string_view name = "v_half";
  static constexpr std::string_view title = "V-Half";
  static constexpr std::string_view summary =
      "half the memory of 1F1B, half its bubble; V-Min where cheaper";

  search_settings search = {};

  /// @throws error (unsupported_problem) when the placement is no V, or no schedule fits the memory
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

/// Keeps the activations of at most (p+4)/3 microbatches on every rank, a third of 1F1B's; else as
/// `v_half`. For equal times and free messages its bubble rate is at most 2p/(3m), tested likewise.
/// @source arXiv 2405.15362
struct v_min {
  static constexpr std::string_view name = "v_min";
  static constexpr std::string_view title = "V-Min";
  static constexpr std::string_view summary =
      "a third of the memory of 1F1B, two thirds of its bubble";

  search_settings search = {};

  /// @throws error (unsupported_problem) as `v_half`
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

/// Splits and moves the W of interleaved 1F1B. A rank keeps no more activations than it does with
/// `interleaved`, or less where a limit of the problem is lower. It costs no more than
/// `interleaved` where that fits the limits.
struct interleaved_zb {
  static constexpr std::string_view name = "interleaved_zb";
  static constexpr std::string_view title = "ZB-I";
  static constexpr std::string_view summary =
      "1F1B-I with W split and moved, in its memory; 1F1B-I where cheaper";

  search_settings search = {};

  /// @throws error (unsupported_problem) when it is not looped, or no schedule fits the memory
  [[nodiscard]] schedule operator()(problem const& problem) const;
};

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/chunk_policies.ipp>
#endif
