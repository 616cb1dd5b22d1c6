// SPDX-License-Identifier: Apache-2.0
//
// How the program makes a plan, what it says of the cut, and when memory is what a plan lacks.
#pragma once

#include "asked.hpp"
#include "searching.hpp"
#include "tables.hpp"
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/json.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/registry.hpp>
#include <zbpp/planner/search.hpp>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace planning {

/// Says that no schedule fits the memory limits, and the least that would.
struct nothing_fits : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Is a policy on a placement; or what searches for orders, and for a placement if there is none.
struct planner {
  std::optional<zbpp::any_policy> policy;
  std::optional<zbpp::placement> placement;  ///< a policy has one

  [[nodiscard]] std::string name() const {
    return policy ? std::string(policy->name()) : "find_plan";
  }
  /// @return the budget if none is stated
  [[nodiscard]] double usual_seconds() const {
    return policy ? zbpp::search_settings{}.seconds : zbpp::plan_choices{}.seconds;
  }
};

/// @return what the options ask for: a policy has the placement of the problem
[[nodiscard]] inline planner planner_of(options const& o) {
  if (o.policy.empty()) return {std::nullopt, o.placement};
  return {zbpp::find_policy(o.policy), o.problem->placement()};
}

/// @return what `find_plan` is told of it
[[nodiscard]] inline zbpp::plan_choices choices_of(
    planner const& by, zbpp::search_settings const& search) {
  return {
      .placement = by.placement,
      .policy = by.policy,
      .seconds = search.seconds,
      .seed = search.seed,
      .stop = search.stop,
      .on_progress = search.on_progress};
}

/// Holds a plan, and lines about its cut where something was cut.
struct made_plan {
  zbpp::json::plan_report report;
  std::string cut;
};

/// @return a few words on how good a cut is
[[nodiscard]] inline std::string proof_of(
    planner const& by, zbpp::found_plan const& found, zbpp::time_unit unit) {
  if (by.policy)
    return found.is_optimal() ? "proved: no cut costs this policy less"
                              : "not proved; the best of " + std::to_string(found.tries) + " tried";
  std::string const none =
      by.placement ? "no cut costs less" : "no placement and no cut costs less";
  return found.is_optimal() ? "proved: " + none
                            : "not proved; " + none + " than " + time_text(found.lower_bound, unit);
}

/// @return lines below a summary: what is in each stage, and the stages that recompute
[[nodiscard]] inline std::string cut_facts(
    planner const& by,
    zbpp::problem const& asked,
    zbpp::found_plan const& found,
    zbpp::time_unit unit) {
  auto const& model = found.problem;
  if (model.layers().empty()) return {};
  std::string counts;
  std::string recomputing;
  for (int s = 0; s < model.stages(); ++s) {
    auto const first = model.first_layer()[zbpp::detail::index(s)];
    counts += (s == 0 ? "" : " ") + std::to_string(model.end_layer(s) - first);
    if (model.costs(s).recompute)
      recomputing += (recomputing.empty() ? "" : " ") + std::to_string(s);
  }
  bool const halves = model.layers().size() > asked.all_costs().size();
  std::pair<std::string, std::string> const parts =
      !asked.layers().empty() ? std::pair{"layers", ", of each stage"}
      : halves                ? std::pair{"halves", ", of stages of the problem in each stage"}
                              : std::pair{"stages", ", of the problem in each stage"};
  constexpr std::size_t width = 11;  // of the summary
  return facts_text(
      {{parts.first, counts + parts.second},
       {"recompute", recomputing.empty() ? "no stage" : "stages " + recomputing},
       {"best cut", proof_of(by, found, unit)}},
      width);
}

/// Makes a plan within the memory limits, and everything that is said of it.
/// @throws nothing_fits; zbpp::error when the policy does not take the problem
[[nodiscard]] inline made_plan make_plan(
    planner const& by, zbpp::problem const& problem, searching const& search) {
  auto const start = std::chrono::steady_clock::now();
  auto const find = [&](zbpp::search_settings const& settings) {
    return zbpp::find_plan(problem, choices_of(by, settings));
  };
  bool const searches = !by.policy || by.policy->searches() || !problem.layers().empty();
  try {
    auto found = searches ? search.watch(find, by.usual_seconds()) : find({});
    std::chrono::duration<double> const spent = std::chrono::steady_clock::now() - start;
    auto cut = cut_facts(by, problem, found, search.unit);
    auto report = zbpp::json::make_plan_report(
        std::move(found.policy),
        std::move(found.schedule),
        std::move(found.problem),
        spent.count());
    zbpp::json::check_limits(report);
    return {std::move(report), std::move(cut)};
  } catch (zbpp::error const& refused) {
    bool const lacks_memory =
        refused.code() == zbpp::errc::unsupported_problem && !problem.memory_limits().empty() &&
        (!by.policy || by.policy->refusal(*by.placement, problem.microbatches()).empty());
    if (!lacks_memory) throw;
    throw nothing_fits(refused.what());
  }
}

}  // namespace planning
