// SPDX-License-Identifier: Apache-2.0
//
// Checks a plan before it is written.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/json/detail/problem_text.hpp>
#include <zbpp/json/plan.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

namespace zbpp::json::detail {

ZBPP_INLINE bool are_first_layers(std::vector<int> const& list, int stages) {
  return list.size() == zbpp::detail::index(stages) && list.front() == 0 &&
         list.back() < problem_limits::layers &&
         std::adjacent_find(list.begin(), list.end(), std::greater_equal<>{}) == list.end();
}

ZBPP_INLINE void check_writable(plan_report const& from) {
  using zbpp::detail::require;
  auto is_number = [](double x) { return std::isfinite(x) && x >= 0; };
  zbpp::detail::require_fit(from.schedule, from.problem);
  auto const ranks = from.problem.ranks();
  require(
      from.peak_memory.size() == zbpp::detail::index(ranks),
      "peak_memory needs one number for each rank");
  require(
      from.schedule.passes().size() >= zbpp::detail::index(from.problem.stages()) *
                                           zbpp::detail::index(from.problem.microbatches()),
      "the order has fewer passes than stages times microbatches");
  require(
      from.cost >= 0 && from.period >= 0 && from.lower_bound >= 0,
      "cost, period and lower_bound are at least 0");
  require(is_number(from.bubble_rate) && from.bubble_rate <= 1, "bubble_rate lies between 0 and 1");
  require(is_number(from.plan_seconds), "plan_seconds is a number of at least 0");
  require(
      from.first_layer.empty() || are_first_layers(from.first_layer, from.problem.stages()),
      "first_layer has an entry for each stage, begins with 0 and ascends, or is empty");
  for (auto peak : from.peak_memory) require(peak >= 0, "peak_memory is at least 0");
  require(from.timeline.ranks() == ranks, "the timeline has a row for each rank");
  for (int rank = 0; rank < ranks; ++rank) {
    auto const passes = from.schedule.passes(rank);
    auto const line = from.timeline[rank];
    bool same = line.size() == passes.size();
    for (std::size_t i = 0; same && i < line.size(); ++i) {
      same = line[i].pass == passes[i];
      require(line[i].start >= 0 && line[i].end >= 0, "times are at least 0");
    }
    require(same, "the timeline has the passes of the order");
  }
}

}  // namespace zbpp::json::detail
