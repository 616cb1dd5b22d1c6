// SPDX-License-Identifier: Apache-2.0
//
// Policies side by side, each on the placement that it needs.
#pragma once

#include "options.hpp"
#include "outputs.hpp"
#include "planners.hpp"
#include "searching.hpp"
#include "tables.hpp"
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/registry.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace planning {

/// Says which placements a policy takes.
enum class placement_need : std::uint8_t { linear, v, looped, any };

/// @return what a policy needs, found by asking it
[[nodiscard]] inline placement_need need_of(zbpp::any_policy const& policy) {
  constexpr int ranks = 2;
  constexpr int microbatches = 8 * ranks;  // enough for every policy
  auto const takes = [&](zbpp::placement const& placement) {
    return policy.refusal(placement, microbatches).empty();
  };
  bool const takes_v = takes(zbpp::placement::v_shape(ranks));
  if (takes(zbpp::placement::looped(ranks, 2)))
    return takes_v ? placement_need::any : placement_need::looped;
  return takes_v ? placement_need::v : placement_need::linear;
}

/// Is a row of a comparison.
struct compared {
  planner by;
  bool is_named = true;  ///< else it is one of all, which is left out where it does not apply
};

/// Finds the rows of a comparison.
///
/// `NAME@PLACEMENT` names both. A policy alone is on the problem's placement if that is the kind it
/// needs, else on that kind, looped with two chunks. One that takes any placement has a row for
/// each of the others, or is on the problem's where there is none. `all` names every policy, and
/// `find_plan` none, so that placements are searched.
class comparison_rows {
 public:
  explicit comparison_rows(zbpp::placement own) : own_(std::move(own)) {}

  /// @throws zbpp::error (bad_argument)
  [[nodiscard]] std::vector<compared> of(std::vector<std::string> const& asked) const {
    std::vector<compared> rows;
    auto const add = [&](planner by, bool is_named) {
      if (by.policy && !by.placement) by.placement = place(need_of(*by.policy));
      rows.push_back({std::move(by), is_named});
    };
    for (std::string_view const text : asked) {
      auto const name = text.substr(0, text.find('@'));
      planner by;
      if (text == "all") {
        for (auto const& policy : zbpp::builtin_policies()) add({policy, std::nullopt}, false);
        continue;
      }
      if (name != by.name()) by.policy = zbpp::find_policy(name);
      if (name.size() < text.size()) by.placement = read(text, text.substr(name.size() + 1));
      add(std::move(by), true);
    }
    return spread(rows);
  }

 private:
  [[nodiscard]] zbpp::placement read(std::string_view text, std::string_view name) const {
    auto const ranks = own_.ranks();
    if (name == "problem") return own_;
    if (name == "linear") return zbpp::placement::linear(ranks);
    if (name == "v") return zbpp::placement::v_shape(ranks);
    if (name == "looped") return zbpp::placement::looped(ranks, 2);
    constexpr std::string_view looped = "looped:";
    if (!name.starts_with(looped))
      refuse(
          "--compare", text, "behind @ linear, v, looped, looped:CHUNKS or problem, for its own");
    constexpr int most = 1 << 16;  // stages, as in files
    return zbpp::placement::looped(
        ranks, whole("--compare", name.substr(looped.size()), 1, std::max(1, most / ranks)));
  }

  // Nothing where a policy takes any.
  [[nodiscard]] std::optional<zbpp::placement> place(placement_need need) const {
    auto const ranks = own_.ranks();
    auto const chunks = own_.stages() / ranks;
    switch (need) {
      case placement_need::linear: return zbpp::placement::linear(ranks);
      case placement_need::v: return zbpp::placement::v_shape(ranks);
      case placement_need::looped:
        return own_.is_looped() && chunks > 1 ? own_ : zbpp::placement::looped(ranks, 2);
      case placement_need::any: break;
    }
    return std::nullopt;
  }

  // Puts a policy that takes any placement on each of the others.
  [[nodiscard]] std::vector<compared> spread(std::vector<compared> const& rows) const {
    std::vector<zbpp::placement> others;
    for (auto const& [by, is_named] : rows)
      if (by.placement && std::ranges::find(others, *by.placement) == others.end())
        others.push_back(*by.placement);
    if (others.empty()) others.push_back(own_);
    std::vector<compared> all;
    for (auto const& row : rows) {
      if (row.by.placement || !row.by.policy)
        all.push_back(row);
      else
        for (auto const& other : others) all.push_back({{row.by.policy, other}, row.is_named});
    }
    return all;
  }

  zbpp::placement own_;
};

/// Holds what a row came to: a plan, or why there is none.
struct outcome {
  std::string policy;
  std::string placement;
  std::optional<zbpp::json::plan_report> plan;
  std::string refusal;
};

/// Plans each row. One that the policy, the placement or the memory refuses has its reason.
/// @throws zbpp::error when the problem is wrong
[[nodiscard]] inline std::vector<outcome> plan_rows(
    std::vector<compared> const& rows, options const& o, searching const& search) {
  std::vector<outcome> all;
  for (auto const& [by, is_named] : rows) {
    outcome row{by.name(), by.placement ? by.placement->text() : "", std::nullopt, {}};
    try {
      row.plan = make_plan(by, *o.problem, search).report;
      row.placement = row.plan->problem.placement().text();
    } catch (nothing_fits const& refused) {
      row.refusal = refused.what();
    } catch (zbpp::error const& refused) {
      // What is wrong with a placement alone concerns its row.
      bool const is_placed = by.placement && *by.placement != o.problem->placement();
      if (refused.code() != zbpp::errc::unsupported_problem && !is_placed) throw;
      if (!is_named) continue;
      row.refusal = refused.what();
    }
    all.push_back(std::move(row));
  }
  return all;
}

/// @return lines that say how the stages of other placements follow from those of the problem
[[nodiscard]] inline std::string placement_notes(
    std::vector<outcome> const& rows, options const& o) {
  if (!o.problem->layers().empty()) return "The layers are cut into stages for each row.\n";
  std::vector<std::pair<std::string, std::string>> notes;  // the change, and the placements
  auto const stages = o.problem->stages();
  std::string all;
  for (auto const& row : rows) {
    if (!row.plan) continue;
    if (!row.plan->first_layer.empty()) {
      all = "find_plan cuts the problem at its stages, or at their halves.\n";
      continue;
    }
    auto const wanted = row.plan->problem.stages();
    if (wanted == stages) continue;
    auto const common = std::gcd(wanted, stages);
    auto const parts = wanted / common;
    auto const run = stages / common;
    auto text = parts > 1 ? "each stage of the problem is divided into " + std::to_string(parts) +
                                " equal parts"
                          : std::to_string(run) + " stages of the problem are merged into one";
    if (parts > 1 && run > 1) text += ", and " + std::to_string(run) + " parts merged into one";
    auto const known =
        std::find_if(notes.begin(), notes.end(), [&](auto const& n) { return n.first == text; });
    if (known == notes.end())
      notes.emplace_back(text, row.placement);
    else if (known->second.find(row.placement) == std::string::npos)
      known->second += " and " + row.placement;
  }
  for (auto const& [text, placements] : notes) all += "On " + placements + " " + text + ".\n";
  if (!all.empty()) all += "Times and sizes keep their sums; a message keeps its size.\n";
  return all;
}

[[nodiscard]] inline zbpp::bytes most_memory(zbpp::json::plan_report const& plan) {
  return *std::max_element(plan.peak_memory.begin(), plan.peak_memory.end());
}

[[nodiscard]] inline std::string comparison_table(
    std::vector<outcome> const& rows, zbpp::time_unit unit) {
  zbpp::text_table text(
      {"policy", "placement", "cost", "bubble rate", "gap to the bound", "peak memory"});
  for (auto const& row : rows)
    if (row.plan)
      text.add(
          {row.policy,
           row.placement,
           time_text(row.plan->cost, unit),
           percent(row.plan->bubble_rate),
           gap_text(row.plan->cost, row.plan->lower_bound),
           std::to_string(most_memory(*row.plan))});
    else
      text.add({row.policy, row.placement}, zbpp::one_line(row.refusal));
  return text.text();
}

[[nodiscard]] inline std::string comparison_csv(
    std::vector<outcome> const& rows, zbpp::time_unit unit) {
  using zbpp::number_text;
  auto const name = std::string(to_string(unit));
  auto text = "policy,placement,stages,cost_" + name + ",lower_bound_" + name +
              ",bubble_rate,optimal,peak_memory,refusal\n";
  for (auto const& row : rows) {
    text += row.policy + "," + row.placement + ",";
    if (row.plan) {
      text += std::to_string(row.plan->problem.stages()) + "," + number_text(row.plan->cost, unit) +
              "," + number_text(row.plan->lower_bound, unit) + "," +
              number_text(row.plan->bubble_rate) + "," + (row.plan->optimal ? "true" : "false") +
              "," + std::to_string(most_memory(*row.plan)) + ",\n";
      continue;
    }
    text += ",,,,,,\"";
    for (char const c : zbpp::one_line(row.refusal)) text += c == '"' ? "\"\"" : std::string(1, c);
    text += "\"\n";
  }
  return text;
}

/// Compares policies and writes what is asked for.
/// @throws zbpp::error
inline void run_compare(options const& o, searching const& search) {
  auto const asked = comparison_rows(o.problem->placement()).of(o.policies);
  auto const rows = plan_rows(asked, o, search);
  std::vector<zbpp::json::plan_report> plans;
  for (auto const& row : rows)
    if (row.plan) plans.push_back(*row.plan);
  bool const is_one_placement = std::all_of(plans.begin(), plans.end(), [&](auto const& plan) {
    return plan.problem.placement() == plans.front().problem.placement();
  });
  if (!is_one_placement)
    for (auto& plan : plans) plan.policy += ", " + plan.problem.placement().text();
  if (!o.out.takes_standard_output())
    print(comparison_table(rows, o.unit) + placement_notes(rows, o) + (o.out.ascii ? "\n" : ""));
  if (auto const& path = o.out.path("--csv"); !path.empty())
    write(path, comparison_csv(rows, o.unit));
  auto pictures = o.out;
  pictures.clear("--csv");
  write_plans(pictures, plans, o.unit);
}

}  // namespace planning
