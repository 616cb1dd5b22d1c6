// SPDX-License-Identifier: Apache-2.0
//
// How a plan is found around what is fixed.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/reductions.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/detail/divided_stages.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/after_passes.hpp>
#include <zbpp/planner/detail/cut_search.hpp>
#include <zbpp/planner/detail/cuts.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>
#include <zbpp/planner/detail/memory_use.hpp>
#include <zbpp/planner/detail/placement_search.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/detail/stage_per_layer.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/save_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zbpp {
namespace detail {

/// @throws error (bad_argument) when a choice is out of range or needs another one
ZBPP_INLINE void check_choices(plan_choices const& choices) {
  check_budget(choices.search());
  static_cast<void>(cost_with_share(0, choices.most_memory_for));
  require(
      choices.placement || choices.first_layer.empty(),
      "plan_choices fixes a cut without a placement; give the placement, too");
  require(
      !choices.first_layer.empty() || choices.recompute.empty(),
      "plan_choices fixes the stages that recompute without a cut; give first_layer, too");
  require(
      choices.most_chunks >= 2, "most_chunks is less than 2; a looped placement has at least 2");
  require(choices.most_cuts >= 0, "most_cuts is less than 0; 0 leaves it to zbpp");
}

/// @return the problem with the pieces of its stages as layers, cut into the same stages
[[nodiscard]] ZBPP_INLINE problem stages_as_layers(problem const& stated) {
  auto const parts = pieces_of(stated) / stated.stages();
  std::vector<int> first_layer;
  std::vector<bool> recompute;
  for (int s = 0; s < stated.stages(); ++s) {
    first_layer.push_back(s * parts);
    recompute.push_back(stated.costs(s).recompute.has_value());
  }
  auto layered = with_layers(stated, divided_stages(stated.all_costs(), parts));
  return with_cut(std::move(layered), std::move(first_layer), recompute);
}

/// Cuts layers for a policy, which the placement suits. One that searches has an equal share of the
/// budget for each cut, and all of it once more for the order of the best cut.
[[nodiscard]] ZBPP_INLINE found_plan find_cut(
    problem const& model, any_policy const& policy, search_budget const& budget, int most_cuts) {
  constexpr int most_of_rules = 1000;
  constexpr int most_of_searches = 100;
  auto const count = most_cuts > 0       ? most_cuts
                     : policy.searches() ? most_of_searches
                                         : most_of_rules;
  // The order of the best cut has as much of the budget as all cuts before it.
  auto const phases = static_cast<std::size_t>(policy.searches() ? 2 : 1);
  auto const first = budget.part(0, phases);
  auto const each = first.share(0.5 / count);
  search_progress last{.cost = std::numeric_limits<ticks>::max()};
  auto const decide = [&](problem const& cut) {
    auto const part = each.part_from(last.spent, 1.0 / count);
    return policy(cut, part.below(last.cost, last.lower_bound).settings());
  };
  auto const report = [&](search_progress const& now) {
    last = now;
    first.report(now.cost, now.lower_bound, now.spent);
  };
  auto found = search_cuts(
      model,
      decide,
      {.schedules = count,
       .seed = budget.seed(),
       .stop = [&] { return budget.is_stopped(); },
       .on_progress = report});
  if (!policy.searches() || budget.is_stopped()) return found;
  auto const longer =
      budget.share(0.5).part(1, phases).below(found.cost, found.lower_bound).settings();
  auto order = insert_recompute(policy(found.problem, longer), found.problem);
  auto const took = cost(simulate(order, found.problem));
  if (took >= found.cost || !is_within_limits(order, found.problem)) return found;
  found.lower_bound = 0;  // it was about the shorter searches
  found.schedule = std::move(order);
  found.cost = took;
  return found;
}

/// Cuts layers for a policy on each placement that suits it.
/// @throws error (unsupported_problem) with the text of the last refusal where there is no plan
[[nodiscard]] ZBPP_INLINE found_plan find_cuts(
    problem const& model,
    std::vector<placement> const& placements,
    any_policy const& policy,
    plan_choices const& choices) {
  std::optional<found_plan> best;
  std::optional<error> refusal;
  search_budget const budget(choices.search());
  auto const each = budget.share(1.0 / static_cast<double>(placements.size()));
  for (std::size_t i = 0; i < placements.size(); ++i) try {
      if (auto text = policy.refusal(placements[i], model.microbatches()); !text.empty())
        throw error(errc::unsupported_problem, std::move(text));
      auto part = each.part(i, placements.size());
      if (placements.size() > 1)  // bounds are about one placement
        part = part.below(best ? best->cost : std::numeric_limits<ticks>::max(), 0);
      auto found = find_cut(with_placement(model, placements[i]), policy, part, choices.most_cuts);
      if (!best || is_better(found, *best)) best = std::move(found);
    } catch (error const& refused) {
      if (refused.code() != errc::unsupported_problem) throw;
      refusal = refused;
    }
  if (!best) throw *refusal;
  best->bound = lower_bound(best->problem);
  if (placements.size() > 1) best->lower_bound = 0;  // it was about this placement
  return *std::move(best);
}

/// Finds the order of a problem that is cut.
[[nodiscard]] ZBPP_INLINE found_plan
order_stages(problem const& model, plan_choices const& choices) {
  if (!choices.policy) return find_order(model, choices.search(), choices.most_memory_for);
  auto order = (*choices.policy)(model, choices.search());
  // A stage that is stated with a time for R may do without.
  if (!model.layers().empty()) order = insert_recompute(std::move(order), model);
  require_limits(choices.policy->title(), memory_of(order, model), model);
  auto const took = cost(simulate(order, model));
  auto const bound = lower_bound(model);
  return {
      .problem = model,
      .schedule = std::move(order),
      .cost = took,
      .bound = bound,
      .lower_bound = bound.cost};
}

/// Finds the plan of layers on some placements.
[[nodiscard]] ZBPP_INLINE found_plan cut_layers(
    problem const& model,
    std::vector<placement> const& placements,
    plan_choices const& choices,
    bool begins_with_own_cut) {
  if (choices.policy) return find_cuts(model, placements, *choices.policy, choices);
  auto found = search_placements(
      model,
      placements,
      search_budget(choices.search()),
      choices.most_memory_for,
      begins_with_own_cut);
  found.schedule = end_stages_in_turn(found.schedule, found.problem);
  return found;
}

[[nodiscard]] ZBPP_INLINE found_plan
find_placed(problem const& model, plan_choices const& choices) {
  bool const has_layers = !model.layers().empty();
  if (!choices.placement) {
    auto const layered = has_layers ? model : stages_as_layers(model);
    return cut_layers(layered, placements_for(layered, choices.most_chunks), choices, !has_layers);
  }
  auto const placed = with_placement(model, *choices.placement);
  if (!choices.first_layer.empty())
    return order_stages(with_cut(placed, choices.first_layer, choices.recompute), choices);
  if (!has_layers) return order_stages(placed, choices);
  return cut_layers(placed, {*choices.placement}, choices, false);
}

}  // namespace detail

ZBPP_INLINE found_plan find_plan(problem const& model, plan_choices const& choices) {
  detail::check_choices(choices);
  auto found =
      choices.stage_per_layer
          ? detail::stage_per_layer(detail::find_placed(detail::plain_layers(model), choices))
          : detail::find_placed(model, choices);
  if (choices.policy) found.policy = choices.policy->title();
  return found;
}

ZBPP_INLINE std::vector<found_plan> find_plans(
    problem const& model, std::span<bytes const> limits, plan_choices const& choices) {
  std::vector<bytes> ascending(limits.begin(), limits.end());
  std::ranges::sort(ascending);
  ascending.erase(std::unique(ascending.begin(), ascending.end()), ascending.end());
  detail::search_budget const budget(choices.search());
  std::vector<found_plan> points;
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    auto const limited = with_memory_limit(model, ascending[i]);
    auto part = choices;
    part.on_progress = budget.part(i, ascending.size()).settings().on_progress;
    std::optional<found_plan> found;
    try {
      found = find_plan(limited, part);
    } catch (error const& nothing_fits) {
      if (nothing_fits.code() != errc::unsupported_problem) throw;
    }
    // What fits less memory fits more.
    if (!points.empty() && (!found || points.back().cost <= found->cost)) {
      auto const bound = found ? found->lower_bound : 0;
      found = points.back();
      found->problem = with_memory_limit(found->problem, ascending[i]);
      found->lower_bound = bound;
      found->bound = lower_bound(found->problem);
    }
    if (found) points.push_back(std::move(*found));
  }
  // What nothing can do within a limit, nothing can do within a lower one.
  ticks bound = 0;
  for (auto point = points.rbegin(); point != points.rend(); ++point)
    point->lower_bound = bound = std::max(bound, point->lower_bound);
  return points;
}

ZBPP_INLINE plan make_plan(found_plan found, lower_options const& options) {
  return {std::move(found.policy), std::move(found.problem), std::move(found.schedule), options};
}

ZBPP_INLINE std::string to_text(found_plan const& found) {
  auto const& placement = found.problem.placement();
  std::string text = detail::joined(placement.name()) + " placement of " + placement.stages() +
                     " stages on " + placement.ranks() + " ranks";
  if (!found.problem.first_layer().empty()) {
    text += ", which begin at layers";
    for (auto const first : found.problem.first_layer()) text += detail::joined(" ", first);
  }
  std::string again;
  for (int s = 0; s < found.problem.stages(); ++s)
    if (found.problem.costs(s).recompute) again += detail::joined(" ", s);
  if (!again.empty()) text += "; recompute in stages" + again;
  text += "; a step is predicted to take " + fixed_text(to_milliseconds(found.cost), 3) + " ms";
  if (found.is_optimal()) text += ", and nothing that was searched takes less";
  return text;
}

}  // namespace zbpp
