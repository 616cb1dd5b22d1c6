// SPDX-License-Identifier: Apache-2.0
//
// Policies of several chunks per rank that search within a budget for activations: V-Half and V-Min
// spend less than ZB-V, interleaved zero bubble as much as interleaved 1F1B.
#pragma once

#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/activation_budget.hpp>
#include <zbpp/planner/memory_needs.hpp>
#include <zbpp/planner/search.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/policy/policy.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

namespace zbpp {
namespace detail {

/// Searches on a V with room for the activations of so many microbatches on every rank.
[[nodiscard]] inline schedule find_on_v(
    problem const& problem,
    std::string_view title,
    int microbatches,
    search_settings const& search) {
  support(
      problem.placement().is_v_shape(),
      title,
      "needs a v placement, two stages a rank; this one is " + problem.placement().name());
  std::vector<bytes> budget;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    bytes kept = 0;
    for (int s : problem.placement().stages_of(rank)) kept += problem.costs(s).activation;
    budget.push_back(kept * std::min(microbatches, problem.microbatches()));
  }
  return find_within(problem, budget, search);
}

}  // namespace detail

/// Keeps the activations of at most (p+2)/2 microbatches on every rank, half of 1F1B's, or less
/// where a limit of the problem is lower; both chunks of a rank are a microbatch. Static memory,
/// workspace and edges come on top. For equal times and free messages its bubble rate is about
/// p/(2m).
/// @source arXiv 2405.15362
struct v_half {
  static constexpr std::string_view name = "v_half";
  static constexpr std::string_view title = "V-Half";
  static constexpr std::string_view summary = "half the memory of 1F1B, half its bubble";

  search_settings search = {};

  /// @throws error (unsupported_problem) when the placement is not a V, or when no schedule fits
  ///         the memory
  [[nodiscard]] schedule operator()(problem const& problem) const {
    return detail::find_on_v(problem, title, (problem.ranks() + 2) / 2, search);
  }
};

/// Keeps the activations of at most (p+4)/3 microbatches on every rank, a third of 1F1B's; else as
/// `v_half`. For equal times and free messages its bubble rate is about 2p/(3m).
/// @source arXiv 2405.15362
struct v_min {
  static constexpr std::string_view name = "v_min";
  static constexpr std::string_view title = "V-Min";
  static constexpr std::string_view summary =
      "a third of the memory of 1F1B, two thirds of its bubble";

  search_settings search = {};

  /// @throws error (unsupported_problem) as `v_half`
  [[nodiscard]] schedule operator()(problem const& problem) const {
    return detail::find_on_v(problem, title, (problem.ranks() + 4) / 3, search);
  }
};

/// Splits and moves the W of interleaved 1F1B, for any number of microbatches. A rank keeps no more
/// activations than it does with `interleaved` (for as many microbatches, or the next multiple of
/// p), or less where a limit of the problem is lower. It costs no more than `interleaved` where
/// that fits the limits.
struct interleaved_zb {
  static constexpr std::string_view name = "interleaved_zb";
  static constexpr std::string_view title = "ZB-I";
  static constexpr std::string_view summary = "1F1B-I with W split and moved, in its memory";

  search_settings search = {};

  /// @throws error (unsupported_problem) when the placement is not looped, or when no schedule fits
  ///         the memory
  [[nodiscard]] schedule operator()(problem const& problem) const {
    detail::support(
        problem.placement().is_looped(),
        title,
        "needs a looped placement; this one is " + problem.placement().name());
    auto const p = problem.ranks();
    zbpp::problem const whole_groups(
        problem.placement(),
        (problem.microbatches() + p - 1) / p * p,
        {problem.all_costs().begin(), problem.all_costs().end()});
    auto plain = interleaved{}(whole_groups);
    auto found = detail::find_within(problem, peak_activations(plain, whole_groups), search);
    bool const is_plain_better = whole_groups.microbatches() == problem.microbatches() &&
                                 detail::is_within_limits(plain, problem) &&
                                 cost(simulate(plain, problem)) < cost(simulate(found, problem));
    return is_plain_better ? plain : found;
  }
};

}  // namespace zbpp
