// SPDX-License-Identifier: Apache-2.0
//
// Bubble rate against memory limit, as a table, as CSV and as a picture.
#pragma once

#include "options.hpp"
#include "planners.hpp"
#include "tables.hpp"
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/io/sweep_svg.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/planner/detail/placement_search.hpp>
#include <zbpp/planner/detail/search_budget.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace planning {

/// Says what one placement costs with one memory limit.
struct sweep_point {
  std::string placement;
  zbpp::bytes memory_limit = 0;
  zbpp::ticks cost = 0;
  zbpp::ticks lower_bound = 0;
  double rate = 0;        ///< of bubbles
  double bound_rate = 0;  ///< below which no bubble rate is
  bool optimal = false;
};

/// @return what is said of a plan
[[nodiscard]] inline sweep_point point_of(zbpp::found_plan const& found) {
  auto const rate = bubble_rate(simulate(found.schedule, found.problem));
  return {
      found.problem.placement().text(),
      found.problem.memory_limits().front(),
      found.cost,
      found.lower_bound,
      rate,
      bound_rate(found.cost, found.lower_bound, rate),
      found.is_optimal()};
}

/// Plans for every limit, on each placement.
/// @throws nothing_fits when not even the greatest limit is enough
[[nodiscard]] inline std::vector<sweep_point> sweep(options const& o, searching const& search) {
  if (!o.policy.empty() && o.policy != zbpp::greedy_auto::name)
    refuse("--policy", o.policy, "greedy_auto, which keeps memory limits, or no policy");
  auto const by = planner_of(o);
  auto const placements =
      by.placement ? std::vector{*by.placement}
                   : zbpp::detail::placements_for(*o.problem, zbpp::plan_choices{}.most_chunks);
  std::vector<sweep_point> points;
  auto const plan = [&](zbpp::search_settings const& settings) {
    auto const count = placements.size();
    auto const each = zbpp::detail::search_budget(settings).share(1.0 / static_cast<double>(count));
    for (std::size_t i = 0; i < count; ++i) {
      auto const part = each.part(i, count).settings();
      auto const plans =
          zbpp::find_plans(*o.problem, o.limits, choices_of({std::nullopt, placements[i]}, part));
      for (auto const& found : plans) points.push_back(point_of(found));
    }
    return !points.empty();
  };
  if (search.watch(plan, by.usual_seconds())) return points;
  auto const limited = zbpp::with_memory_limit(*o.problem, o.limits.back());
  static_cast<void>(make_plan({std::nullopt, by.placement}, limited, search));
  throw nothing_fits("no schedule fits the limits");
}

[[nodiscard]] inline std::string sweep_table(
    std::vector<sweep_point> const& points, zbpp::time_unit unit) {
  zbpp::text_table rows(
      {"placement", "memory limit", "cost", "bubble rate", "lower bound", "optimal"});
  for (auto const& p : points)
    rows.add(
        {p.placement,
         std::to_string(p.memory_limit),
         time_text(p.cost, unit),
         percent(p.rate),
         percent(p.bound_rate),
         p.optimal ? "proved" : "-"});
  return rows.text();
}

[[nodiscard]] inline std::string sweep_csv(
    std::vector<sweep_point> const& points, zbpp::time_unit unit) {
  using zbpp::number_text;
  auto const name = std::string(to_string(unit));
  auto text = "placement,memory_limit,cost_" + name + ",lower_bound_" + name +
              ",bubble_rate,lower_bound_bubble_rate,optimal\n";
  for (auto const& p : points)
    text += p.placement + "," + std::to_string(p.memory_limit) + "," + number_text(p.cost, unit) +
            "," + number_text(p.lower_bound, unit) + "," + number_text(p.rate) + "," +
            number_text(p.bound_rate) + "," + (p.optimal ? "true" : "false") + "\n";
  return text;
}

[[nodiscard]] inline std::string sweep_svg(
    std::vector<sweep_point> const& points, zbpp::problem const& problem) {
  std::vector<zbpp::sweep_curve> curves;
  for (auto const& p : points) {
    if (curves.empty() || curves.back().name != p.placement) curves.push_back({p.placement, {}});
    curves.back().samples.push_back({p.memory_limit, p.rate, p.bound_rate, p.optimal});
  }
  return zbpp::sweep_to_svg(
      curves,
      {.title = std::to_string(problem.ranks()) + " ranks, " +
                std::to_string(problem.microbatches()) + " microbatches"});
}

/// Plans for every limit and writes what is asked for.
/// @throws nothing_fits; zbpp::error
inline void run_sweep(options const& o, searching const& search) {
  auto const points = sweep(o, search);
  if (auto const& path = o.out.path("--csv"); !path.empty()) write(path, sweep_csv(points, o.unit));
  if (auto const& path = o.out.path("--svg"); !path.empty())
    write(path, sweep_svg(points, *o.problem));
  if (!o.out.takes_standard_output()) print(sweep_table(points, o.unit));
}

}  // namespace planning
