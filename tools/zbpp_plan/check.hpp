// SPDX-License-Identifier: Apache-2.0
//
// Checks what somebody else made: a plan in JSON with all its claims, or a schedule in CSV.
#pragma once

#include "inputs.hpp"
#include "options.hpp"
#include "tables.hpp"
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/io/detail/text_encoding.hpp>
#include <zbpp/json/json.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace planning {

/// Holds what a check found.
struct verdict {
  std::vector<std::string> faults;  ///< one line each; none when all is right
  std::string summary;              ///< of what is right
};

/// Says in what a plan's problem differs from the one it should be about.
[[nodiscard]] inline std::string difference(zbpp::problem const& said, zbpp::problem const& asked) {
  if (said.placement() != asked.placement()) return "placement";
  if (said.microbatches() != asked.microbatches()) return "microbatches";
  if (!std::ranges::equal(said.all_costs(), asked.all_costs())) return "stages";
  if (said.transfer() != asked.transfer()) return "transfer";
  if (!std::ranges::equal(said.microbatch_factors(), asked.microbatch_factors()))
    return "microbatch_factors";
  return "memory_limit";
}

[[nodiscard]] inline verdict check_plan(std::string_view text, options const& o) {
  auto unit = zbpp::time_unit::milliseconds;
  auto const said = zbpp::json::read_plan(text, input_name(o.check), &unit);
  verdict found;
  if (o.problem && said.problem != *o.problem)
    found.faults.push_back(
        "problem: " + difference(said.problem, *o.problem) + " differs from that in " +
        input_name(o.problem_file));
  for (auto& fault : zbpp::json::check_claims(said)) found.faults.push_back(std::move(fault));
  found.summary = summary_of(said, unit);
  return found;
}

/// Reads a schedule or a program; transfers are put in place where the file has none.
[[nodiscard]] inline zbpp::program read_program(std::string_view text, options const& o) {
  return with_name_of(o.check, [&] {
    return zbpp::complete_program_from_csv(text, o.problem ? &*o.problem : nullptr);
  });
}

/// @return a line that says how pairs were read; nothing when there were none
[[nodiscard]] inline std::string pairs_text(std::string_view text, options const& o) {
  auto const pairs = zbpp::overlapped_pairs_in_csv(text);
  if (pairs == 0) return {};
  bool const together = o.problem && zbpp::pairs_for(*o.problem) == zbpp::csv_pairs::together;
  return "pairs that overlap (OVERLAP_F_B): " + std::to_string(pairs) +
         (together ? "; the two passes of each run together\n"
                   : "; the two passes of each are taken one after the other, as written\n");
}

/// @return a line that says which actions of PyTorch's runtime were left out; nothing when none
/// were
[[nodiscard]] inline std::string ignored_text(std::string_view text) {
  std::string names;
  for (auto const& action : zbpp::ignored_actions_in_csv(text))
    names +=
        (names.empty() ? "" : ", ") + std::to_string(action.count) + " " + std::string(action.name);
  return names.empty() ? names : "actions of PyTorch's runtime left out: " + names + "\n";
}

[[nodiscard]] inline verdict check_schedule(std::string_view text, options const& o) {
  auto const code = read_program(text, o);
  auto const faults = o.problem ? zbpp::verify(code, *o.problem) : zbpp::verify(code);
  verdict found;
  auto notes = pairs_text(text, o) + ignored_text(text);
  for (auto const& one : faults) {
    if (zbpp::is_remark(one.fault))
      notes += "remark: " + to_string(one) + "\n";
    else
      found.faults.push_back(to_string(one));
  }
  if (!found.faults.empty()) return found;
  if (!o.problem) {
    found.summary = std::to_string(code.ranks()) + " ranks, " + std::to_string(code.stages()) +
                    " stages (" + code.placement().name() + "), " +
                    std::to_string(code.microbatches()) +
                    " microbatches; --problem FILE would tell what it costs\n" + notes;
    return found;
  }
  auto plan = zbpp::json::make_plan_report("", zbpp::passes_of(code), *o.problem);
  plan.peak_memory.clear();
  for (auto const& peak : zbpp::peak_memory(code, *o.problem))
    plan.peak_memory.push_back(peak.total);
  found.summary = summary_of(plan, o.unit) + notes;
  return found;
}

/// Checks the file that the options name, JSON if it begins as an object does.
/// @throws zbpp::error when it cannot be read
[[nodiscard]] inline verdict check(options const& o) {
  auto const text = read(o.check);
  auto const content = zbpp::detail::without_byte_order_mark(text);
  auto const first = content.find_first_not_of(" \t\r\n");
  bool const is_plan = first != std::string::npos && content[first] == '{';
  return is_plan || o.check.ends_with(".json") ? check_plan(text, o) : check_schedule(text, o);
}

}  // namespace planning
