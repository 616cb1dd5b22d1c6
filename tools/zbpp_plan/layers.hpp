// SPDX-License-Identifier: Apache-2.0
//
// Plans of layers: which go into which stage, and in what order the passes then run.
#pragma once

#include "options.hpp"
#include "planners.hpp"
#include "searching.hpp"
#include "tables.hpp"
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/model/layers.hpp>
#include <zbpp/planner/auto_plan.hpp>
#include <zbpp/planner/named_policy.hpp>
#include <zbpp/planner/partition_by_name.hpp>

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace planning {

/// Holds a plan of layers, and what is proved of it.
struct layers_plan {
  zbpp::json::plan_report plan;
  std::string proof;  ///< a line about other cuts
};

/// @return a line about a plan of auto_plan
[[nodiscard]] inline std::string proof_over_placements(
    zbpp::found_plan const& found, zbpp::time_unit unit) {
  return found.is_optimal() ? "proved: no placement and no cut costs less"
                            : "not proved; no placement and no cut costs less than " +
                                  time_text(found.lower_bound, unit);
}
/// @return a line about a partition for a policy
[[nodiscard]] inline std::string proof_over_cuts(zbpp::found_plan const& found) {
  return found.is_optimal() ? "proved: no cut costs this policy less"
                            : "not proved; the best of " + std::to_string(found.tries) + " tried";
}

/// Cuts layers into stages for a policy, or for auto_plan's search, within the memory limits.
/// @throws nothing_fits; zbpp::error when the policy does not take the placement
[[nodiscard]] inline layers_plan plan_layers(
    zbpp::json::planner const& chosen,
    zbpp::layered_problem const& model,
    searching const& search) {
  if (chosen.scope == zbpp::json::planner_scope::placement)
    refuse("auto_placement places stages; auto_plan does that for layers");
  bool const is_auto = chosen.scope == zbpp::json::planner_scope::layers;
  if (!is_auto)
    if (auto const refusal =
            zbpp::placement_refusal(chosen.name, model.placement(), model.microbatches());
        !refusal.empty())
      throw zbpp::error(zbpp::errc::unsupported_problem, refusal);
  auto const start = std::chrono::steady_clock::now();
  auto const report = [&](zbpp::found_plan found, std::string proof) -> layers_plan {
    std::chrono::duration<double> const spent = std::chrono::steady_clock::now() - start;
    auto plan = zbpp::json::make_plan_report(
        std::string(chosen.title),
        std::move(found.schedule),
        std::move(found.problem),
        spent.count());
    plan.first_layer = std::move(found.first_layer);
    require_fit(plan);
    return {std::move(plan), std::move(proof)};
  };
  try {
    if (!is_auto)
      return search.watch([&](zbpp::search_settings const& settings) {
        auto found = zbpp::partition_by_name(model, chosen.name, settings);
        auto proof = proof_over_cuts(found);
        return report(std::move(found), std::move(proof));
      });
    zbpp::auto_plan decide;
    auto const usual = decide.search.seconds;
    return search.watch(
        [&](zbpp::search_settings const& settings) {
          decide.search = settings;
          auto found = decide(model);
          auto proof = proof_over_placements(found, search.unit);
          return report(std::move(found), std::move(proof));
        },
        usual);
  } catch (zbpp::error const& refused) {
    if (refused.code() != zbpp::errc::unsupported_problem) throw;
    throw nothing_fits(refused.what());
  }
}

/// @return lines below a summary: the layers of each stage, and the stages that recompute
[[nodiscard]] inline std::string layers_facts(layers_plan const& found, std::size_t layers) {
  auto const& first = found.plan.first_layer;
  std::string counts;
  std::string recomputing;
  for (std::size_t s = 0; s < first.size(); ++s) {
    auto const end = s + 1 < first.size() ? static_cast<std::size_t>(first[s + 1]) : layers;
    counts += (s == 0 ? "" : " ") + std::to_string(end - static_cast<std::size_t>(first[s]));
    if (found.plan.problem.costs(static_cast<int>(s)).recompute)
      recomputing += (recomputing.empty() ? "" : " ") + std::to_string(s);
  }
  constexpr std::size_t width = 11;  // of the summary
  return facts_text(
      {{"layers", counts + ", of each stage"},
       {"recompute", recomputing.empty() ? "no stage" : "stages " + recomputing},
       {"best cut", found.proof}},
      width);
}

}  // namespace planning
