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
[[nodiscard]] inline std::string proof_of(zbpp::planned_layers const& found, zbpp::time_unit unit) {
  return found.is_optimal() ? "proved: no placement and no cut costs less"
                            : "not proved; no placement and no cut costs less than " +
                                  time_text(found.lower_bound, unit);
}
/// @return a line about a partition for a policy
[[nodiscard]] inline std::string proof_of(zbpp::layer_partition const& found) {
  return found.optimal ? "proved: no cut costs this policy less"
                       : "not proved; the best of " + std::to_string(found.schedules) + " tried";
}

/// Cuts layers into stages for a policy, or for auto_plan's search, within the memory limits.
/// @throws nothing_fits; zbpp::error when the policy does not take the placement
[[nodiscard]] inline layers_plan plan_layers(
    planner const& who,
    zbpp::layered_problem const& model,
    searching const& how,
    bool states_seconds) {
  if (who.name == auto_placement_name)
    refuse("auto_placement places stages; auto_plan does that for layers");
  bool const is_auto = who.name == auto_plan_name;
  if (!is_auto)
    if (auto const why = zbpp::placement_refusal(who.name, model.placement(), model.microbatches());
        !why.empty())
      throw zbpp::error(zbpp::errc::unsupported_problem, why);
  auto const start = std::chrono::steady_clock::now();
  auto const report = [&](auto found, std::string proof) -> layers_plan {
    std::chrono::duration<double> const spent = std::chrono::steady_clock::now() - start;
    auto plan = zbpp::json::make_plan_report(
        who.title, std::move(found.schedule), std::move(found.problem), spent.count());
    plan.first_layer = std::move(found.first_layer);
    check_limits(plan);
    return {std::move(plan), std::move(proof)};
  };
  try {
    return how.watch([&](zbpp::search_settings search) -> layers_plan {
      if (!is_auto) {
        auto found = zbpp::partition_by_name(model, who.name, search);
        auto proof = proof_of(found);
        return report(std::move(found), std::move(proof));
      }
      zbpp::auto_plan decide;
      if (!states_seconds) search.seconds = decide.search.seconds;
      decide.search = search;
      auto found = decide(model);
      auto proof = proof_of(found, how.unit);
      return report(std::move(found), std::move(proof));
    });
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
