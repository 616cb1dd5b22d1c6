// SPDX-License-Identifier: Apache-2.0
//
// How samples of passes and messages become a profile.
#pragma once

#include <zbpp/analysis/costs_from.hpp>
#include <zbpp/analysis/message_times.hpp>
#include <zbpp/analysis/profile.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/detail/median.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// @param all  at least one
[[nodiscard]] ZBPP_INLINE time_spread spread_of(std::vector<ticks> all) {
  auto const [least, most] = std::ranges::minmax(all);
  auto const middle = median(all);
  time_spread spread{std::ssize(all), least, middle, most};
  for (auto& one : all) one = std::abs(one - middle);
  spread.deviation = median(all);
  return spread;
}

}  // namespace detail

ZBPP_INLINE step_profile
profile(std::span<timeline const> steps, problem const& stated, profile_options const& options) {
  detail::require(options.first_steps >= 0, "profile_options::first_steps is below 0");
  detail::require(
      steps.size() > detail::index(options.first_steps),
      "profile got no step behind the first ones, which it leaves out; give more steps");
  steps = steps.subspan(detail::index(options.first_steps));
  step_profile found{costs_and_messages_from(steps, stated, options.message_quantile)};

  std::map<std::pair<int, pass_kind>, std::vector<ticks>> passes;
  std::map<std::pair<int, int>, std::vector<ticks>> messages;
  std::vector<ticks> costs;
  for (auto const& step : steps) {
    costs.push_back(cost(step));
    for (auto const& [from, to, took] : awaited_messages(step, stated.placement()))
      messages[{from, to}].push_back(took);
    for (int rank = 0; rank < step.ranks(); ++rank)
      for (std::size_t at = 0; at < step[rank].size(); ++at) {
        if (detail::next_is_paired(step[rank], at)) {
          ++at;
          continue;
        }
        auto const& [p, start, end] = step[rank][at];
        passes[{p.stage, p.kind}].push_back(
            detail::at_factor_1(end - start, stated.microbatch_factor(p.microbatch)));
      }
  }
  for (auto const& [kind, all] : passes)
    found.passes.push_back({kind.first, kind.second, detail::spread_of(all)});
  for (auto const& [ranks, all] : messages)
    found.messages.push_back({ranks.first, ranks.second, detail::spread_of(all)});
  found.step = detail::spread_of(costs);
  return found;
}

}  // namespace zbpp
