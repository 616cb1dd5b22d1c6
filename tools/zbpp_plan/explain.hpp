// SPDX-License-Identifier: Apache-2.0
//
// Explains measured steps: reads them from traces, and the plan that they ran from a file.
#pragma once

#include "inputs.hpp"
#include "options.hpp"
#include "outputs.hpp"
#include <zbpp/analysis/explain.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/io/drawing.hpp>
#include <zbpp/io/explanation_drawing.hpp>
#include <zbpp/io/explanation_text.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/json/json.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace planning {

/// Reads the timeline of a trace that is called `measured`, or its only one.
/// @throws zbpp::error
[[nodiscard]] inline zbpp::timeline read_measured(std::string const& path) {
  auto lines = zbpp::json::read_chrome_trace(read(path), input_name(path));
  auto const is_measured = [](auto const& one) { return one.name == "measured"; };
  auto const found = std::ranges::find_if(lines, is_measured);
  if (lines.size() > 1 && std::ranges::count_if(lines, is_measured) != 1) {
    std::string names;
    for (auto const& one : lines) names += (names.empty() ? "'" : ", '") + one.name + "'";
    refuse(
        input_name(path) + ": found the timelines " + zbpp::one_line(names, 200) +
        "; expected one, or one that is called 'measured'");
  }
  return std::move(found != lines.end() ? found->line : lines.front().line);
}

/// Is a measured step with what explains it.
struct explained_step {
  zbpp::timeline measured;
  zbpp::explanation found;
};

/// Explains the step of a trace.
/// @throws zbpp::error that begins with the name of the trace where that is at fault
[[nodiscard]] inline explained_step explain_trace(
    std::string const& path, zbpp::plan const& planned) {
  auto measured = read_measured(path);
  auto found = with_name_of(path, [&] { return zbpp::explain(planned, measured); });
  return {std::move(measured), std::move(found)};
}

/// Explains the step of the options, or compares two; prints what it finds, or writes files.
/// @throws zbpp::error
inline void run_explain(options const& o) {
  auto unit = zbpp::time_unit::milliseconds;
  auto said = zbpp::json::read_plan(read(o.plan_file), input_name(o.plan_file), &unit);
  auto const planned = with_name_of(o.plan_file, [&] {
    return zbpp::make_plan(
        std::move(said.policy), std::move(said.schedule), std::move(said.problem));
  });
  auto const [measured, step] = explain_trace(o.explain, planned);
  if (o.out.any()) {
    auto const lines = zbpp::explanation_drawing(planned, measured, step);
    if (auto const& path = o.out.path("--json"); !path.empty())
      write(path, zbpp::json::write_explanation(step, unit));
    if (auto const& path = o.out.path("--svg"); !path.empty()) write(path, zbpp::to_svg(lines));
    if (auto const& path = o.out.path("--trace"); !path.empty())
      write(path, zbpp::to_chrome_trace(lines));
    return;
  }
  auto const text = zbpp::to_text(step, unit);
  if (o.against.empty()) return print(text);
  auto const other = explain_trace(o.against, planned).found;
  auto const first = zbpp::one_line(input_name(o.explain));
  auto const second = zbpp::one_line(input_name(o.against));
  print(
      first + "\n" + text + "\n" + second + "\n" + zbpp::to_text(other, unit) + "\nfrom " + first +
      " to " + second + "\n" + zbpp::changes_text(step, other, unit));
}

}  // namespace planning
