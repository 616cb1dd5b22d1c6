// SPDX-License-Identifier: Apache-2.0
//
// What searches share that are made of searches: how long a microbatch keeps a stage busy, budgets
// and their parts, and progress that is part of a whole.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/scaled_costs.hpp>
#include <zbpp/planner/search.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace zbpp::detail {

// ---- work --------------------------------------------------------------------------------------
//
// How long one microbatch keeps a stage busy.

/// @return the least time in which the passes of one microbatch can run, none of them in a pair
[[nodiscard]] constexpr ticks work_of(stage_costs const& c) noexcept {
  return c.forward + c.of(pass_kind::backward);
}

/// @return the same where as much as can be is paired
[[nodiscard]] constexpr ticks least_work_of(stage_costs const& c) noexcept {
  return work_of(c) - c.most_saved_by_pairing();
}

/// @return the problem with microbatches of one size, the mean of theirs
[[nodiscard]] inline problem with_mean_microbatch(problem const& problem) {
  auto const factors = problem.microbatch_factors();
  if (factors.empty()) return problem;
  auto const mean =
      std::accumulate(factors.begin(), factors.end(), 0.0) / static_cast<double>(factors.size());
  std::vector<stage_costs> costs;
  for (auto const& c : problem.all_costs()) costs.push_back(times_factor(c, mean));
  auto const& given = problem.transfer();
  std::vector<double> rates;
  constexpr double most = 1e9;  // as in transfer_costs
  for (double const rate : given.time_per_byte()) rates.push_back(std::min(rate * mean, most));
  auto alike = with_stages(with_microbatch_factors(problem, {}), std::move(costs));
  if (rates.empty()) return alike;
  return with_transfer(
      std::move(alike),
      {given.ranks(), {given.latency().begin(), given.latency().end()}, std::move(rates)});
}

// ---- budgets -----------------------------------------------------------------------------------
//
// A budget is counted in passes that a search could place, so that it ends at the same place on any
// machine. Whatever else is done is converted into passes by what it takes on the machine on which
// a pass takes 50 ns; docs/planner.md says how far that holds.

/// How many passes a search places in a second of its budget.
inline constexpr double passes_per_second = 2e7;

/// How many passes it places in the time in which a pass is simulated, and its memory counted.
inline constexpr double passes_per_simulation = 2;

/// The same for a pass of an order in which a choice of pairs is tried.
inline constexpr double passes_per_pair_trial = 8;

/// How many passes it places in the time of one comparison of `raise_bound`.
inline constexpr double passes_per_comparison = 2;

/// Refuses a budget that is not a number of seconds.
/// @throws error (bad_argument)
inline void check_budget(search_settings const& search) {
  if (!(search.seconds >= 0 && search.seconds <= search_settings::most_seconds))
    throw error(errc::bad_argument) + "a budget of " + search.seconds +
        " seconds; it lies between 0 and " + search_settings::most_seconds;
}

[[nodiscard]] inline double passes_of(search_settings const& search) {
  return search.seconds * passes_per_second;
}

[[nodiscard]] inline double work_of_bound(problem const& problem) {
  return time_of_lower_bound(problem) * 1e-9 * passes_per_second;
}

[[nodiscard]] inline search_settings share_of(search_settings search, double share) {
  search.seconds *= share;
  return search;
}

/// @return the settings of each of so many searches with equal shares of a budget
[[nodiscard]] inline search_settings share_of_each(search_settings search, std::size_t searches) {
  search.seconds /= static_cast<double>(searches);
  return search;
}

/// The share of a budget that goes into less memory at the cost that was found.
inline constexpr double share_of_saving = 0.03;
/// The share of what is left that goes into the bounds of what searches have found.
inline constexpr double share_of_proofs = 0.17;
/// What the first search may take near its bound, as a multiple of its share.
inline constexpr double most_near_bound = 1.5;

/// Divides a budget among a search, others in smaller memories, and proofs. Chosen by us: a search
/// of all the memory finds the best order more often than one of less.
struct budget_shares {
  explicit budget_shares(std::size_t smaller)
      : first(
            (1 - share_of_proofs) / (most_near_bound + of_smaller * static_cast<double>(smaller))),
        each_smaller(of_smaller * first) {}

  static constexpr double of_smaller = 0.75;  // of the share of the first
  double first;                               ///< `most_near_bound` times as much near the bound
  double each_smaller;
};

/// @param smaller  memories that policies have on the placement
/// @return what a policy that searches has for one of them: as much as `greedy_auto` has for it, so
///         that the policy does not find more
/// @throws error (bad_argument) when the budget is not a number of seconds
[[nodiscard]] inline search_settings share_of_policy(
    search_settings const& search, std::size_t smaller) {
  check_budget(search);
  return share_of(share_of(search, 1 - share_of_saving), budget_shares(smaller).each_smaller);
}

/// Raises bounds within a budget of its own.
class proof_budget {
 public:
  explicit proof_budget(double passes) : left_(passes) {}

  /// @return the greater bound, or `bound`, as `raise_bound` has it
  [[nodiscard]] cost_bound raise(cost_bound const& bound, ticks cost, problem const& problem) {
    constexpr double most_costs = 9;  // that are tried
    double comparisons = 0;
    auto const effort = left_ / (most_costs * passes_per_comparison);
    auto const raised = raise_bound(bound, cost, problem, effort, &comparisons);
    left_ -= passes_per_comparison * comparisons;
    spent_ += passes_per_comparison * comparisons;
    return raised;
  }

  /// @return what that took, in passes
  [[nodiscard]] double spent() const noexcept { return spent_; }

 private:
  double left_;
  double spent_ = 0;
};

// ---- parts of searches -------------------------------------------------------------------------
//
// Progress that is part of a whole.

/// Makes a search the `done`-th of `all` in what it reports.
[[nodiscard]] inline search_settings part_of_search(
    search_settings settings, std::size_t done, std::size_t all) {
  if (!settings.on_progress) return settings;
  settings.on_progress = [tell = settings.on_progress, done, all](search_progress const& part) {
    auto whole = part;
    whole.spent = (static_cast<double>(done) + part.spent) / static_cast<double>(all);
    tell(whole);
  };
  return settings;
}

}  // namespace zbpp::detail
