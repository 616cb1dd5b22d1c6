// SPDX-License-Identifier: Apache-2.0
//
// How long one microbatch keeps a stage busy, and the mean of microbatches that differ.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/scaled_costs.hpp>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace zbpp::detail {

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

}  // namespace zbpp::detail
