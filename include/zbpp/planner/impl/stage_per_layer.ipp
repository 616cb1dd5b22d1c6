// SPDX-License-Identifier: Apache-2.0
//
// How the passes of stages become those of their layers.
#pragma once

#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/detail/stage_per_layer.hpp>

#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace zbpp::detail {

ZBPP_INLINE found_plan stage_per_layer(found_plan const& found) {
  auto const& cut = found.problem;
  if (cut.layers().empty()) return found;
  if (auto const found_pass = find_beside_or_again(found.schedule))
    throw error(errc::unsupported_problem) + "stage_per_layer: " + to_string(*found_pass) +
        (found_pass->is_paired ? " runs together with an F" : " runs an F again") +
        "; passes of layers run one after another and once";
  std::vector<int> rank_of;
  for (int stage = 0; stage < cut.stages(); ++stage)
    for (int layer = cut.first_layer()[index(stage)]; layer < cut.end_layer(stage); ++layer)
      rank_of.push_back(cut.placement().rank_of(stage));
  std::vector<std::vector<pass>> rows(index(cut.ranks()));
  for (int rank = 0; rank < cut.ranks(); ++rank)
    for (auto const& p : found.schedule.passes(rank)) {
      auto const first = cut.first_layer()[index(p.stage)];
      auto const last = cut.end_layer(p.stage) - 1;
      for (int i = 0; i <= last - first; ++i)
        rows[index(rank)].push_back(
            {p.kind, p.kind == pass_kind::forward ? first + i : last - i, p.microbatch});
    }
  auto const placed = placement::custom(std::move(rank_of));
  auto split = with_placement(cut, placed);
  schedule order(placed, cut.microbatches(), rows);
  auto const took = cost(simulate(order, split));
  return {.problem = std::move(split), .schedule = std::move(order), .cost = took};
}

ZBPP_INLINE std::optional<pass> find_beside_or_again(schedule const& order) {
  for (auto const& p : order.passes().all())
    if (p.is_paired || p.kind == pass_kind::recompute) return p;
  return std::nullopt;
}

ZBPP_INLINE problem plain_layers(problem const& model) {
  auto const plain = [](std::span<stage_costs const> given) {
    std::vector<stage_costs> costs(given.begin(), given.end());
    for (auto& c : costs) {
      c.overlapped.reset();
      c.overlapped_fused.reset();
      c.recompute.reset();
      c.recompute_input = 0;
    }
    return costs;
  };
  return model.layers().empty() ? with_stages(model, plain(model.all_costs()))
                                : with_layers(model, plain(model.layers()));
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

}  // namespace zbpp::detail
