// SPDX-License-Identifier: Apache-2.0
//
// The placements on which a model of layers can be planned, and what is known about each.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/bottleneck.hpp>
#include <zbpp/planner/detail/cuts.hpp>
#include <zbpp/planner/detail/work.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Lists the placements for a number of layers, the fewest stages first, each once.
[[nodiscard]] inline std::vector<placement> placements_for(
    layered_problem const& model, int most_chunks) {
  auto const p = model.placement().ranks();
  std::vector<placement> list{model.placement()};
  auto const add = [&](placement const& one) {
    if (index(one.stages()) <= model.layers().size() &&
        std::find(list.begin(), list.end(), one) == list.end())
      list.push_back(one);
  };
  add(placement::linear(p));
  add(placement::v_shape(p));
  auto const layers = static_cast<int>(model.layers().size());
  for (int chunks = 2; chunks <= most_chunks && chunks <= layers / p; ++chunks)
    add(placement::looped(p, chunks));
  std::stable_sort(list.begin(), list.end(), [](placement const& a, placement const& b) {
    return a.stages() < b.stages();
  });
  return list;
}

/// @return the same layers on another placement with as many ranks
[[nodiscard]] inline layered_problem on_placement(
    layered_problem const& model, placement const& placement, int microbatches) {
  return {
      placement,
      microbatches,
      {model.layers().begin(), model.layers().end()},
      model.transfer(),
      {model.memory_limits().begin(), model.memory_limits().end()}};
}

/// Holds a plan that was found on one placement.
struct placed_candidate {
  cut where;
  zbpp::problem problem;
  zbpp::schedule schedule;
  ticks cost;
};

/// @return whether a plan is cheaper than another, or costs as much with fewer stages
[[nodiscard]] inline bool is_better(placed_candidate const& a, placed_candidate const& b) {
  return a.cost < b.cost || (a.cost == b.cost && a.problem.stages() < b.problem.stages());
}

/// Knows one placement of a model, and the best plan found for it.
struct plan_site {
  explicit plan_site(layered_problem uncut)
      : model(std::move(uncut)),
        space(model),
        balanced(bottleneck_partition(model.layers(), model.placement())),
        passes(3.0 * model.stages() * model.microbatches()),
        bound(least_cost()) {}
  plan_site(plan_site const&) = delete;  // `space` refers to `model`
  plan_site& operator=(plan_site const&) = delete;

  // The work of the busiest rank; where cuts are few, also the least bound of all of them.
  [[nodiscard]] ticks least_cost() const {
    ticks most = 0;
    ticks all = 0;
    bool may_pair = false;  // then ranks may take less than the work that was balanced
    for (auto const& c : model.layers()) {
      most = std::max(most, least_work_of(c));
      all += least_work_of(c);
      may_pair = may_pair || c.saved_by_pairing() > 0;
    }
    auto const ranks = model.placement().ranks();
    auto const work =
        model.microbatches() *
        (balanced.optimal && !may_pair ? balanced.work : std::max(most, (all + ranks - 1) / ranks));
    constexpr double most_passes = 1 << 17;  // to look at, about a tenth of a second
    std::vector<layer_costs> keeping(model.layers().begin(), model.layers().end());
    for (auto& c : keeping) c.recompute.reset();
    layered_problem const plain(
        model.placement(), model.microbatches(), std::move(keeping), model.transfer());
    cut_space const cuts(plain);
    if (!cuts.has_at_most(static_cast<std::int64_t>(most_passes / passes))) return work;
    std::optional<ticks> least;
    cuts.for_each([&](cut const& c) {
      auto const any = space.with_choice(c.first_layer, true);  // a bound for each set of stages
      auto const cost = lower_bound(model.with(any.first_layer, any.recompute)).cost;
      least = std::min(least.value_or(cost), cost);
    });
    return std::max(work, *least);
  }

  layered_problem model;
  cut_space space;
  bottleneck balanced;
  double passes;
  ticks bound;  // no cut costs less
  std::optional<placed_candidate> best;
};

}  // namespace zbpp::detail
