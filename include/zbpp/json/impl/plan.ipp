// SPDX-License-Identifier: Apache-2.0
//
// How a plan is worked out, read and written.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/period.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/json/detail/document.hpp>
#include <zbpp/json/detail/fields.hpp>
#include <zbpp/json/detail/problem_text.hpp>
#include <zbpp/json/plan.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/planner/detail/memory_limits.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::json {

namespace detail {

/// Reads a plan from the outermost object of a file.
class plan_reader {
 public:
  explicit plan_reader(value const& object) : object_(object) {}

  [[nodiscard]] plan_report read() {
    constexpr std::array<std::string_view, 10> names{
        "policy",
        "problem",
        "cost",
        "period",
        "lower_bound",
        "optimal",
        "bubble_rate",
        "plan_seconds",
        "ranks",
        "first_layer"};
    auto const [policy, problem, cost, period, bound, optimal, rate, seconds, ranks, layers] =
        object_.members(names, names.size() - 1);
    if (!policy.is(value_kind::string)) policy.refuse("the title of a policy");
    if (!optimal.is(value_kind::boolean)) optimal.refuse("true or false");
    problem_reader reader(problem);
    auto const asked = reader.read();
    unit_ = reader.unit();
    read_ranks(ranks, asked);
    auto order = as_format_error(ranks, [&] {
      return schedule{asked.placement(), asked.microbatches(), std::move(passes_)};
    });
    return {
        std::string(policy.text()),
        asked,
        std::move(order),
        std::move(line_),
        time(cost, unit_),
        time(period, unit_),
        time(bound, unit_),
        optimal.text() == "true",
        read_rate(rate),
        real(seconds, 0, "seconds"),
        std::move(peaks_),
        layers ? read_first_layers(layers, asked.stages()) : std::vector<int>{}};
  }

  [[nodiscard]] time_unit unit() const noexcept { return unit_; }

 private:
  [[nodiscard]] static double read_rate(value const& from) {
    auto const rate = real(from, 0, "a rate from 0 to 1");
    if (rate > 1) from.refuse("a rate from 0 to 1");
    return rate;
  }

  void read_ranks(value const& ranks, problem const& asked) {
    if (!ranks.is(value_kind::array) || ranks.size() != zbpp::detail::index(asked.ranks()))
      ranks.refuse(
          zbpp::detail::joined("an array of ", asked.ranks(), ", one object for each rank"));
    ranks.for_each([&](value const& rank) {
      constexpr std::array<std::string_view, 2> names{"peak_memory", "passes"};
      auto const [peak, passes] = rank.members(names, names.size());
      peaks_.push_back(size(peak));
      if (!passes.is(value_kind::array)) passes.refuse("an array of passes");
      passes.for_each([&](value const& entry) { read_pass(entry, asked); });
      passes_.end_row();
      line_.end_row();
    });
    // What looks at a plan keeps something for each pass that there should be.
    auto const least = std::int64_t{asked.stages()} * asked.microbatches();
    if (passes_.size() < zbpp::detail::index(least))
      ranks.refuse(
          zbpp::detail::joined(passes_.size(), " passes"),
          zbpp::detail::joined("at least ", least, ", one for each stage and microbatch"));
  }

  void read_pass(value const& entry, problem const& asked) {
    constexpr std::array<std::string_view, 6> names{
        "pass", "stage", "microbatch", "start", "end", "paired"};
    auto const [kind, stage, microbatch, start, end, paired] = entry.members(names, 5);
    if (paired && !paired.is(value_kind::boolean)) paired.refuse("true or false");
    pass const moved{
        read_kind(kind),
        static_cast<std::int32_t>(whole(stage, 0, asked.stages() - 1)),
        static_cast<std::int32_t>(whole(microbatch, 0, asked.microbatches() - 1)),
        paired && paired.text() == "true"};
    passes_.push(moved);
    line_.push({moved, time(start, unit_), time(end, unit_)});
  }

  [[nodiscard]] static pass_kind read_kind(value const& name) {
    for (auto const& traits : pass_table)
      if (is_word(name, traits.letters)) return traits.kind;
    if (is_word(name, "offload") || is_word(name, "reload")) name.refuse(not_offloaded);
    name.refuse("'F', 'B', 'W', 'BW' or 'R'");
  }

  value object_;
  time_unit unit_ = time_unit::milliseconds;
  rows<pass> passes_;
  timeline line_;
  std::vector<bytes> peaks_;
};

ZBPP_INLINE std::vector<int> read_first_layers(value const& list, int stages) {
  std::vector<int> first;
  if (list.is(value_kind::array))
    list.for_each([&](value const& layer) {
      first.push_back(static_cast<int>(whole(layer, 0, problem_limits::layers - 1)));
    });
  if (!are_first_layers(first, stages))
    list.refuse(
        zbpp::detail::joined("an array of ") + stages +
        " that begins with 0 and ascends, the first layer of each stage");
  return first;
}

}  // namespace detail

ZBPP_INLINE plan_report
make_plan_report(std::string policy, schedule order, problem problem, double plan_seconds) {
  auto predicted = simulate(order, problem);
  auto const whole = zbpp::cost(predicted);
  auto const bound = raise_bound(zbpp::lower_bound(problem), whole, problem).cost;
  auto const rate = std::max(0.0, zbpp::bubble_rate(predicted));
  auto const repeated = zbpp::period(order, problem).period.rounded_up();
  std::vector<bytes> peaks;
  for (auto const& peak : zbpp::peak_memory(lower(order), problem)) peaks.push_back(peak.total);
  std::vector<int> first_layer(problem.first_layer().begin(), problem.first_layer().end());
  auto const costs = problem.all_costs();
  if (!first_layer.empty()) problem = with_stages(problem, {costs.begin(), costs.end()});
  return {
      std::move(policy),
      std::move(problem),
      std::move(order),
      std::move(predicted),
      whole,
      repeated,
      bound,
      whole <= bound,
      rate,
      plan_seconds,
      std::move(peaks),
      std::move(first_layer)};
}

ZBPP_INLINE void check_limits(plan_report const& plan) {
  zbpp::detail::require_limits(plan.policy, plan.peak_memory, plan.problem);
}

ZBPP_INLINE plan_report read_plan(std::string_view text, std::string const& name, time_unit* unit) {
  detail::document const all(text, name);
  detail::plan_reader reader{detail::value(all)};
  auto result = reader.read();
  if (unit != nullptr) *unit = reader.unit();
  return result;
}

ZBPP_INLINE std::string write_plan(plan_report const& from, time_unit unit) {
  detail::check_writable(from);
  auto const title = zbpp::detail::json_text(from.policy);
  zbpp::detail::require(!title.empty(), "the title of the policy is not UTF-8");
  std::string text = "{\n";
  auto add = [&text](std::string_view key, std::string const& number) {
    text.append("  \"").append(key).append("\": ").append(number).append(",\n");
  };
  add("policy", title);
  add("problem", detail::problem_writer(from.problem, unit, "  ").write());
  add("cost", number_text(from.cost, unit));
  add("period", number_text(from.period, unit));
  add("lower_bound", number_text(from.lower_bound, unit));
  add("optimal", from.optimal ? "true" : "false");
  add("bubble_rate", number_text(from.bubble_rate));
  add("plan_seconds", number_text(from.plan_seconds));
  if (!from.first_layer.empty()) {
    std::string list;
    for (int layer : from.first_layer)
      list.append(list.empty() ? "[" : ", ").append(std::to_string(layer));
    add("first_layer", list + "]");
  }
  text += "  \"ranks\": [";
  for (int rank = 0; rank < from.problem.ranks(); ++rank) {
    text.append(rank == 0 ? "\n" : ",\n").append("    {\"peak_memory\": ");
    text.append(std::to_string(from.peak_memory[zbpp::detail::index(rank)]));
    text += ", \"passes\": [";
    auto const* comma = "\n";
    for (auto const& [done, start, end] : from.timeline[rank]) {
      text.append(comma).append("      {\"pass\": \"").append(to_string(done.kind));
      text.append("\", \"stage\": ").append(std::to_string(done.stage));
      text.append(", \"microbatch\": ").append(std::to_string(done.microbatch));
      text.append(", \"start\": ").append(number_text(start, unit));
      text.append(", \"end\": ").append(number_text(end, unit));
      text += done.is_paired ? ", \"paired\": true}" : "}";
      comma = ",\n";
    }
    text += "\n    ]}";
  }
  text += "\n  ]\n}\n";
  if (text.size() > largest_text)
    throw error(errc::bad_argument) + "the plan takes " + text.size() +
        " bytes of JSON; read_plan takes " + largest_text + " at most";
  return text;
}

}  // namespace zbpp::json
