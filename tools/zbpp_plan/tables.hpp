// SPDX-License-Identifier: Apache-2.0
//
// Plain text for people: numbers, a summary of a plan, tables.
#pragma once

#include <zbpp/io/text.hpp>
#include <zbpp/io/text_table.hpp>
#include <zbpp/json/json.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace planning {

/// @return a share of 1 in percent, with two decimals
[[nodiscard]] inline std::string percent(double share) {
  return zbpp::fixed_text(100 * share, 2) + " %";
}

/// @return how much more than the lower bound a plan costs, relative to that
[[nodiscard]] inline std::string gap_text(zbpp::ticks cost, zbpp::ticks bound) {
  if (cost <= bound) return "proved optimal";
  if (bound == 0) return "no bound";
  return percent(static_cast<double>(cost - bound) / static_cast<double>(bound));
}

/// @return the bubble rate that a plan would have if it cost no more than the lower bound
[[nodiscard]] inline double bound_rate(zbpp::ticks cost, zbpp::ticks bound, double rate) {
  if (cost <= bound || bound == 0) return rate;
  return std::max(0.0, 1 - (1 - rate) * static_cast<double>(cost) / static_cast<double>(bound));
}

/// @return words below each other and what they mean beside them
/// @param width  of the words, at least
[[nodiscard]] inline std::string facts_text(
    std::vector<std::pair<std::string, std::string>> const& facts, std::size_t width = 0) {
  for (auto const& [word, meaning] : facts) width = std::max(width, word.size());
  std::string text;
  for (auto const& [word, meaning] : facts)
    text += word + std::string(width + 2 - word.size(), ' ') + meaning + "\n";
  return text;
}

/// @return a few lines that say what a plan is worth
[[nodiscard]] inline std::string summary_of(
    zbpp::json::plan_report const& plan, zbpp::time_unit unit) {
  auto const peak = std::max_element(plan.peak_memory.begin(), plan.peak_memory.end());
  auto const gap = gap_text(plan.cost, plan.lower_bound);
  std::vector<std::pair<std::string, std::string>> facts;
  if (!plan.policy.empty()) facts.emplace_back("policy", plan.policy);
  facts.emplace_back(
      "pipeline",
      std::to_string(plan.problem.ranks()) + " ranks, " + std::to_string(plan.problem.stages()) +
          " stages (" + plan.problem.placement().name() + "), " +
          std::to_string(plan.problem.microbatches()) + " microbatches");
  facts.emplace_back("cost", time_text(plan.cost, unit));
  facts.emplace_back("bubble rate", percent(plan.bubble_rate));
  facts.emplace_back("lower bound", time_text(plan.lower_bound, unit));
  facts.emplace_back("optimal", plan.optimal ? "proved" : "not proved; the gap is " + gap);
  facts.emplace_back("period", time_text(plan.period, unit));
  facts.emplace_back(
      "peak memory",
      std::to_string(*peak) + " on rank " + std::to_string(peak - plan.peak_memory.begin()));
  if (plan.plan_seconds > 0) {
    auto const spent = static_cast<zbpp::ticks>(plan.plan_seconds * 1e6) * 1000;
    facts.emplace_back("planned in", time_text(spent, zbpp::time_unit::seconds));
  }
  return facts_text(facts);
}

}  // namespace planning
