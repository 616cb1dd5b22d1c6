// SPDX-License-Identifier: Apache-2.0
//
// Plans as JSON: problem, order, times, and what is said of them. A reader checks that a text is
// well formed; whether what it says is true is for `check_claims`.
#pragma once

#include <zbpp/analysis/bounds.hpp>
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/period.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/json/detail/document.hpp>
#include <zbpp/json/detail/fields.hpp>
#include <zbpp/json/problem.hpp>
#include <zbpp/model/containers.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::json {

/// Is a plan with what is said of it. All but problem and order are claims of whoever made it.
struct plan_report {
  std::string policy;  ///< title of the policy that made it
  problem what;
  schedule order;
  timeline predicted;              ///< the passes of `order`, timed
  ticks cost = 0;                  ///< of one step
  ticks period = 0;                ///< of a step among many, rounded up
  ticks lower_bound = 0;           ///< no schedule that runs microbatches in order costs less
  bool optimal = false;            ///< whether the cost is proved to be the least
  double bubble_rate = 0;          ///< from 0 to 1
  double plan_seconds = 0;         ///< how long the policy took
  std::vector<bytes> peak_memory;  ///< of each rank

  friend bool operator==(plan_report const&, plan_report const&) = default;
};

/// Works out all that is said of an order that `verify` accepts. Memory is that of the program
/// which `lower` makes of it without options.
/// @throws error (bad_argument) when order and problem do not belong together; (refused_program)
///         naming a pass that could never start
[[nodiscard]] plan_report make_plan_report(
    std::string policy, schedule order, problem problem, double plan_seconds = 0);

/// Reads a plan and checks kinds, ranges and counts, but believes what it says: see `check_claims`.
/// `name` says in messages what was read; `unit` receives the unit of the times in the text.
/// @throws error (bad_format) with line and column, or the path of the key, what was found and what
///         would be right
[[nodiscard]] plan_report read_plan(
    std::string_view text, std::string const& name = "plan", time_unit* unit = nullptr);

/// Writes a plan, with its times in `unit`; `read_plan` gives back the same value.
/// @throws error (bad_argument) when `read_plan` would refuse it: parts that do not belong
///         together, negative numbers, a title that is not UTF-8, more than `largest_text` bytes
[[nodiscard]] std::string write_plan(
    plan_report const& from, time_unit unit = time_unit::milliseconds);

namespace detail {

/// Reads a plan from the outermost object of a file.
class plan_reader {
 public:
  explicit plan_reader(value const& object) : object_(object) {}

  /// @return the plan
  [[nodiscard]] plan_report read() {
    constexpr std::array<std::string_view, 9> names{
        "policy",
        "problem",
        "cost",
        "period",
        "lower_bound",
        "optimal",
        "bubble_rate",
        "plan_seconds",
        "ranks"};
    auto const [policy, what, cost, period, bound, optimal, rate, seconds, ranks] =
        object_.members(names, names.size());
    if (!policy.is(value_kind::string)) policy.refuse("the title of a policy");
    if (!optimal.is(value_kind::boolean)) optimal.refuse("true or false");
    problem_reader reader(what);
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
        std::move(peaks_)};
  }

  /// @return the unit of the file's times, once it has been read
  [[nodiscard]] time_unit unit() const noexcept { return unit_; }

 private:
  [[nodiscard]] static double read_rate(value const& from) {
    auto const rate = real(from, 0, "a rate from 0 to 1");
    if (rate > 1) from.refuse("a rate from 0 to 1");
    return rate;
  }

  void read_ranks(value const& ranks, problem const& asked) {
    if (!ranks.is(value_kind::array) || ranks.size() != zbpp::detail::index(asked.ranks()))
      ranks.refuse("an array of " + std::to_string(asked.ranks()) + ", one object for each rank");
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
          std::to_string(passes_.size()) + " passes",
          "at least " + std::to_string(least) + ", one for each stage and microbatch");
  }

  void read_pass(value const& entry, problem const& asked) {
    constexpr std::array<std::string_view, 5> names{"pass", "stage", "microbatch", "start", "end"};
    auto const [kind, stage, microbatch, start, end] = entry.members(names, names.size());
    pass const what{
        read_kind(kind),
        static_cast<std::int32_t>(whole(stage, 0, asked.stages() - 1)),
        static_cast<std::int32_t>(whole(microbatch, 0, asked.microbatches() - 1))};
    passes_.push(what);
    line_.push({what, time(start, unit_), time(end, unit_)});
  }

  [[nodiscard]] static pass_kind read_kind(value const& name) {
    for (auto kind :
         {pass_kind::forward,
          pass_kind::backward_input,
          pass_kind::backward_weight,
          pass_kind::backward,
          pass_kind::recompute})
      if (is_word(name, to_string(kind))) return kind;
    if (is_word(name, "offload") || is_word(name, "reload")) name.refuse(not_offloaded);
    name.refuse("'F', 'B', 'W', 'BW' or 'R'");
  }

  value object_;
  time_unit unit_ = time_unit::milliseconds;
  rows<pass> passes_;
  timeline line_;
  std::vector<bytes> peaks_;
};

/// Refuses what the reader would refuse.
/// @throws error (bad_argument)
inline void check_writable(plan_report const& from) {
  using zbpp::detail::require;
  auto is_number = [](double x) { return std::isfinite(x) && x >= 0; };
  zbpp::detail::require_fit(from.order, from.what);
  auto const ranks = from.what.ranks();
  require(
      from.peak_memory.size() == zbpp::detail::index(ranks),
      "peak_memory needs one number for each rank");
  require(
      from.order.passes().size() >=
          zbpp::detail::index(from.what.stages()) * zbpp::detail::index(from.what.microbatches()),
      "the order has fewer passes than stages times microbatches");
  require(
      from.cost >= 0 && from.period >= 0 && from.lower_bound >= 0,
      "cost, period and lower_bound are at least 0");
  require(is_number(from.bubble_rate) && from.bubble_rate <= 1, "bubble_rate lies between 0 and 1");
  require(is_number(from.plan_seconds), "plan_seconds is a number of at least 0");
  for (auto peak : from.peak_memory) require(peak >= 0, "peak_memory is at least 0");
  require(from.predicted.ranks() == ranks, "the timeline has a row for each rank");
  for (int rank = 0; rank < ranks; ++rank) {
    auto const passes = from.order.passes(rank);
    auto const line = from.predicted[rank];
    bool same = line.size() == passes.size();
    for (std::size_t i = 0; same && i < line.size(); ++i) {
      same = line[i].what == passes[i];
      require(line[i].start >= 0 && line[i].end >= 0, "times are at least 0");
    }
    require(same, "the timeline has the passes of the order");
  }
}

/// @return a string as JSON writes it
/// @throws error (bad_argument) when it is not UTF-8
[[nodiscard]] inline std::string quoted(std::string const& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (nlohmann::json::type_error const&) {
    throw error(errc::bad_argument, "the title of the policy is not UTF-8");
  }
}

}  // namespace detail

inline plan_report make_plan_report(
    std::string policy, schedule order, problem problem, double plan_seconds) {
  auto predicted = simulate(order, problem);
  auto const whole = zbpp::cost(predicted);
  auto const bound = zbpp::lower_bound(problem).cost;
  auto const rate = std::max(0.0, zbpp::bubble_rate(predicted));
  auto const repeated = zbpp::period(order, problem).period.rounded_up();
  std::vector<bytes> peaks;
  for (auto const& peak : zbpp::peak_memory(lower(order), problem)) peaks.push_back(peak.total);
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
      std::move(peaks)};
}

inline plan_report read_plan(std::string_view text, std::string const& name, time_unit* unit) {
  detail::document const all(text, name);
  detail::plan_reader reader{detail::value(all)};
  auto result = reader.read();
  if (unit != nullptr) *unit = reader.unit();
  return result;
}

inline std::string write_plan(plan_report const& from, time_unit unit) {
  detail::check_writable(from);
  std::string text = "{\n";
  auto add = [&text](std::string_view key, std::string const& number) {
    text.append("  \"").append(key).append("\": ").append(number).append(",\n");
  };
  add("policy", detail::quoted(from.policy));
  add("problem", detail::problem_writer(from.what, unit, "  ").write());
  add("cost", number_text(from.cost, unit));
  add("period", number_text(from.period, unit));
  add("lower_bound", number_text(from.lower_bound, unit));
  add("optimal", from.optimal ? "true" : "false");
  add("bubble_rate", number_text(from.bubble_rate));
  add("plan_seconds", number_text(from.plan_seconds));
  text += "  \"ranks\": [";
  for (int rank = 0; rank < from.what.ranks(); ++rank) {
    text.append(rank == 0 ? "\n" : ",\n").append("    {\"peak_memory\": ");
    text.append(std::to_string(from.peak_memory[zbpp::detail::index(rank)]));
    text += ", \"passes\": [";
    auto const* comma = "\n";
    for (auto const& [what, start, end] : from.predicted[rank]) {
      text.append(comma).append("      {\"pass\": \"").append(to_string(what.kind));
      text.append("\", \"stage\": ").append(std::to_string(what.stage));
      text.append(", \"microbatch\": ").append(std::to_string(what.microbatch));
      text.append(", \"start\": ").append(number_text(start, unit));
      text.append(", \"end\": ").append(number_text(end, unit)).append("}");
      comma = ",\n";
    }
    text += "\n    ]}";
  }
  text += "\n  ]\n}\n";
  if (text.size() > largest_text)
    throw error(
        errc::bad_argument,
        "the plan takes " + std::to_string(text.size()) + " bytes of JSON; read_plan takes " +
            std::to_string(largest_text) + " at most");
  return text;
}

}  // namespace zbpp::json
