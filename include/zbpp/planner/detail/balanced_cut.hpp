// SPDX-License-Identifier: Apache-2.0
//
// The cut that searches begin with: it gives the busiest rank the least work, also where ranks
// differ in speed.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/detail/bottleneck.hpp>
#include <zbpp/planner/detail/stage_work.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Says what some stages of a rank take at least whose work is known at speed 1: each time of each
/// of them is rounded to a tick.
[[nodiscard]] inline ticks time_at_least(ticks work, double speed, int stages) {
  constexpr double times = 3;  // of a stage: F, B and W, or what two of them take together
  return static_cast<ticks>(
      std::max(std::floor(static_cast<double>(work) / speed) - times * stages, 0.0));
}

/// Cuts layers so that the busiest rank has the least work. Where ranks differ in speed, it is as
/// little as moving one layer after another away from it gives, and the cut counts as not proved.
[[nodiscard]] inline bottleneck balanced_cut(
    std::span<layer_costs const> layers, problem const& model) {
  auto found = bottleneck_partition(layers, model.placement());
  if (model.rank_speeds().empty()) return found;
  found.optimal = false;
  auto const& place = model.placement();
  auto const stages = index(place.stages());
  std::vector<double> work{0};  // of the layers before each
  for (auto const& c : layers) work.push_back(work.back() + static_cast<double>(least_work_of(c)));
  auto const end_of = [&](std::vector<int> const& first, std::size_t s) {
    return s + 1 < stages ? index(first[s + 1]) : layers.size();
  };
  // The times of all ranks, the longest first, and which rank has that.
  auto const loads = [&](std::vector<int> const& first) {
    std::vector<std::pair<double, int>> all;
    for (int r = 0; r < place.ranks(); ++r) all.emplace_back(0.0, r);
    for (std::size_t s = 0; s < stages; ++s) {
      auto const rank = place.rank_of(static_cast<int>(s));
      all[index(rank)].first +=
          (work[end_of(first, s)] - work[index(first[s])]) / model.rank_speed(rank);
    }
    std::sort(all.begin(), all.end(), std::greater<>());
    return all;
  };
  auto now = loads(found.first_layer);
  // Own choice, so that a model of thousands of stages ends soon, too.
  for (int left = 1 << 16; left > 0;) {
    auto best = now;
    auto best_cut = found.first_layer;
    for (int const from : place.stages_of(now.front().second)) {
      if (end_of(found.first_layer, index(from)) - index(found.first_layer[index(from)]) < 2)
        continue;
      for (int to = 0; to < place.stages(); ++to, --left) {
        auto next = found.first_layer;
        for (int s = from + 1; s <= to; ++s) --next[index(s)];
        for (int s = to + 1; s <= from; ++s) ++next[index(s)];
        auto changed = loads(next);
        if (changed >= best) continue;
        best = std::move(changed);
        best_cut = std::move(next);
      }
    }
    if (best >= now) break;
    now = std::move(best);
    found.first_layer = std::move(best_cut);
  }
  found.work = static_cast<ticks>(now.front().first);
  return found;
}

}  // namespace zbpp::detail
