// SPDX-License-Identifier: Apache-2.0
//
// Plans as JSON: problem, schedule, times, and what is said of them. A reader checks that a text is
// well formed; whether what it says is true is for `check_claims`.
#pragma once

#include <zbpp/io/text.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace zbpp::json {

/// A plan and its claimed figures; only problem and schedule are trusted.
struct plan_report {
  std::string policy;  ///< title of the policy that made it
  zbpp::problem problem;
  zbpp::schedule schedule;
  zbpp::timeline timeline;         ///< the passes of `schedule`, timed
  ticks cost = 0;                  ///< of one step
  ticks period = 0;                ///< of a step among many, rounded up
  ticks lower_bound = 0;           ///< no schedule that runs microbatches in order costs less
  bool optimal = false;            ///< whether the cost is proved to be the least
  double bubble_rate = 0;          ///< from 0 to 1
  double plan_seconds = 0;         ///< how long the policy took
  std::vector<bytes> peak_memory;  ///< of each rank
  /// The first layer of each stage, where layers were cut into stages; else empty.
  std::vector<int> first_layer = {};

  friend bool operator==(plan_report const&, plan_report const&) = default;
};

/// Works out all that is said of a schedule that `verify` accepts. Of layers the report has their
/// stages, and where these begin. Memory is that of the program
/// which `lower` makes of it without options.
/// @throws error (bad_argument) when schedule and problem do not belong together; (refused_program)
///         naming a pass that could never start
[[nodiscard]] plan_report make_plan_report(
    std::string policy, schedule schedule, problem problem, double plan_seconds = 0);

/// Checks that every rank has the memory that a plan needs.
/// @throws error (unsupported_problem) naming the first rank that has not, and the least limit that
///         works for the plan on every rank
void check_limits(plan_report const& plan);

/// Reads a plan and checks kinds, ranges and counts, but believes what it says: see `check_claims`.
/// `name` says in messages what was read; `unit` receives the unit of the times in the text.
/// @throws error (bad_format) with line and column or key, what was found and what was expected
[[nodiscard]] plan_report read_plan(
    std::string_view text, std::string const& name = "plan", time_unit* unit = nullptr);

/// Writes a plan, with its times in `unit`; `read_plan` gives back the same value.
/// @throws error (bad_argument) when `read_plan` would refuse it: parts that do not belong
///         together, negative numbers, a title that is not UTF-8, more than `largest_text` bytes
[[nodiscard]] std::string write_plan(
    plan_report const& from, time_unit unit = time_unit::milliseconds);

}  // namespace zbpp::json

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/json/impl/plan.ipp>
#include <zbpp/json/impl/writable.ipp>
#endif
