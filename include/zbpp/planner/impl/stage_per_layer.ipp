// SPDX-License-Identifier: Apache-2.0
//
// How the passes of stages become those of their layers.
#pragma once

#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/scaled_costs.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/stage_per_layer.hpp>

#include <optional>
#include <utility>
#include <vector>

namespace zbpp {

ZBPP_INLINE found_plan stage_per_layer(found_plan const& found, layered_problem const& model) {
  using detail::index;
  auto const& merged = found.schedule;
  auto const layers = static_cast<int>(model.layers().size());
  detail::require(
      found.problem == model.with(found.first_layer, found.recompute),
      "stage_per_layer: the plan is not one of these layers on their placement; give the model "
      "with the placement of the plan");
  auto const end_of = [&](int stage) {
    return stage + 1 < merged.placement().stages() ? found.first_layer[index(stage) + 1] : layers;
  };

  if (auto const found_pass = detail::find_beside_or_again(merged))
    throw error(errc::unsupported_problem) + "stage_per_layer: " + to_string(*found_pass) +
        (found_pass->is_paired ? " runs together with an F" : " runs an F again") +
        "; passes of layers run one after another and once";

  std::vector<int> rank_of;
  std::vector<stage_costs> costs;
  std::vector<int> first_layer;
  for (int stage = 0; stage < merged.placement().stages(); ++stage)
    for (int layer = found.first_layer[index(stage)]; layer < end_of(stage); ++layer) {
      auto const rank = merged.placement().rank_of(stage);
      rank_of.push_back(rank);
      costs.push_back(at_speed(model.layers()[index(layer)], model.rank_speed(rank)));
      costs.back().recompute.reset();
      costs.back().recompute_input = 0;
      first_layer.push_back(layer);
    }

  std::vector<std::vector<pass>> rows(index(merged.placement().ranks()));
  for (int rank = 0; rank < merged.placement().ranks(); ++rank)
    for (auto const& p : merged.passes(rank)) {
      auto const first = found.first_layer[index(p.stage)];
      auto const last = end_of(p.stage) - 1;
      for (int i = 0; i <= last - first; ++i)
        rows[index(rank)].push_back(
            {p.kind, p.kind == pass_kind::forward ? first + i : last - i, p.microbatch});
    }

  auto const placed = placement::custom(std::move(rank_of));
  auto split = with_replicas(
      problem{
          placed,
          model.microbatches(),
          std::move(costs),
          model.transfer(),
          {model.memory_limits().begin(), model.memory_limits().end()}},
      model.replicas());
  schedule order(placed, model.microbatches(), rows);
  auto const took = cost(simulate(order, split));
  return {
      .problem = std::move(split),
      .schedule = std::move(order),
      .cost = took,
      .first_layer = std::move(first_layer)};
}

namespace detail {

ZBPP_INLINE std::optional<pass> find_beside_or_again(schedule const& order) {
  for (auto const& p : order.passes().all())
    if (p.is_paired || p.kind == pass_kind::recompute) return p;
  return std::nullopt;
}

ZBPP_INLINE layered_problem plain_layers(layered_problem const& model) {
  std::vector<layer_costs> layers(model.layers().begin(), model.layers().end());
  for (auto& c : layers) {
    c.overlapped.reset();
    c.overlapped_fused.reset();
    c.recompute.reset();
    c.recompute_input = 0;
  }
  return with_layers(model, std::move(layers));
}

ZBPP_INLINE placement merged_placement(placement const& placement) {
  std::vector<int> ranks;
  for (int const rank : placement.rank_of_stages())
    if (ranks.empty() || ranks.back() != rank) ranks.push_back(rank);
  auto const v = zbpp::placement::v_shape(placement.ranks());
  auto all = std::vector<int>(v.rank_of_stages().begin(), v.rank_of_stages().end());
  all.erase(all.begin() + placement.ranks());  // one of both in the middle
  if (ranks == all && placement.ranks() > 1 && placement.stages() >= v.stages()) return v;
  return zbpp::placement::custom(std::move(ranks));
}

}  // namespace detail
}  // namespace zbpp
