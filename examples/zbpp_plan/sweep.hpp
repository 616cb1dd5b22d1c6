// SPDX-License-Identifier: Apache-2.0
//
// Bubble rate against memory limit, as a table, as CSV and as a picture.
#pragma once

#include "options.hpp"
#include "planners.hpp"
#include "tables.hpp"
#include <zbpp/io/sweep_svg.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/planner/auto_placement.hpp>

#include <span>
#include <string>
#include <vector>

namespace planning {

/// Plans for every limit: on the problem's own placement, or on every one.
/// @throws nothing_fits when not even the greatest limit is enough
[[nodiscard]] inline std::vector<zbpp::sweep_point> sweep(options const& o, searching const& how) {
  auto const policy = o.policy.empty() ? auto_placement_name : std::string_view(o.policy);
  bool const places = policy == auto_placement_name;
  if (!places && policy != zbpp::greedy_auto::name)
    refuse("--policy", policy, "greedy_auto or auto_placement, which keep memory limits");
  auto const& problem = o.problem->problem;
  auto points = how.watch([&](zbpp::search_settings const& search) {
    return places ? zbpp::sweep_memory(problem, o.limits, zbpp::auto_placement{.search = search})
                  : zbpp::sweep_memory(problem, o.limits, zbpp::greedy_auto{.search = search});
  });
  if (!points.empty()) return points;
  auto const limited = zbpp::with_memory_limit(problem, o.limits.back());
  static_cast<void>(make_plan(find_planner(all_planners(how), policy), limited));
  throw nothing_fits("no schedule fits the limits");
}

[[nodiscard]] inline std::string sweep_table(
    std::vector<zbpp::sweep_point> const& points, zbpp::time_unit unit) {
  table rows({"placement", "memory limit", "cost", "bubble rate", "lower bound", "optimal"});
  for (auto const& p : points)
    rows.add(
        {p.placement,
         std::to_string(p.memory_limit),
         time_text(p.cost, unit),
         percent(p.bubble_rate),
         percent(bound_rate(p.cost, p.lower_bound, p.bubble_rate)),
         p.optimal ? "proved" : "-"});
  return rows.text();
}

[[nodiscard]] inline std::string sweep_csv(
    std::vector<zbpp::sweep_point> const& points, zbpp::time_unit unit) {
  using zbpp::number_text;
  auto const name = std::string(to_string(unit));
  auto text = "placement,memory_limit,cost_" + name + ",lower_bound_" + name +
              ",bubble_rate,lower_bound_bubble_rate,optimal\n";
  for (auto const& p : points)
    text += p.placement + "," + std::to_string(p.memory_limit) + "," + number_text(p.cost, unit) +
            "," + number_text(p.lower_bound, unit) + "," + number_text(p.bubble_rate) + "," +
            number_text(bound_rate(p.cost, p.lower_bound, p.bubble_rate)) + "," +
            (p.optimal ? "true" : "false") + "\n";
  return text;
}

[[nodiscard]] inline std::string sweep_svg(
    std::vector<zbpp::sweep_point> const& points, zbpp::problem const& problem) {
  std::vector<zbpp::sweep_curve> curves;
  for (auto const& p : points) {
    if (curves.empty() || curves.back().name != p.placement) curves.push_back({p.placement, {}});
    curves.back().samples.push_back(
        {p.memory_limit,
         p.bubble_rate,
         bound_rate(p.cost, p.lower_bound, p.bubble_rate),
         p.optimal});
  }
  return zbpp::sweep_to_svg(
      curves,
      {.title = std::to_string(problem.ranks()) + " ranks, " +
                std::to_string(problem.microbatches()) + " microbatches"});
}

/// Plans for every limit and writes what is asked for.
/// @throws nothing_fits; zbpp::error
inline void run_sweep(options const& o, searching const& how) {
  auto const points = sweep(o, how);
  auto const unit = o.problem->unit;
  if (auto const& path = o.out.path("--csv"); !path.empty()) write(path, sweep_csv(points, unit));
  if (auto const& path = o.out.path("--svg"); !path.empty())
    write(path, sweep_svg(points, o.problem->problem));
  if (!o.out.takes_standard_output()) print(sweep_table(points, unit));
}

}  // namespace planning
