// SPDX-License-Identifier: Apache-2.0
//
// A plan: a problem, the schedule a policy made for it, the program that runs it, and what it is
// predicted to cost. This is what a pipeline is made from.
#pragma once

#include <zbpp/analysis/lower.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/policy/policy.hpp>

#include <concepts>
#include <string>
#include <utility>

namespace zbpp {

/// Holds everything known about a step before it runs. Its parts belong together: the program is
/// that of the schedule, and the timeline is what `simulate` predicts for it.
class plan {
 public:
  /// Lowers and simulates a schedule. Tied stages are those of the problem.
  /// @param policy  title of the policy that made the schedule
  /// @throws error (bad_argument) when the schedule is not one for the problem; (refused_program)
  ///         with what `verify` finds when a pass could never start
  plan(
      std::string policy,
      zbpp::problem problem,
      zbpp::schedule schedule,
      lower_options const& options = {});

  /// Takes a program that the caller made from the schedule. A pipeline verifies it before it runs.
  /// @throws as above; (bad_argument) when the program is not one for the problem
  plan(std::string policy, zbpp::problem problem, zbpp::schedule schedule, zbpp::program program);

  [[nodiscard]] std::string const& policy() const noexcept { return policy_; }
  [[nodiscard]] zbpp::problem const& problem() const noexcept { return problem_; }
  [[nodiscard]] zbpp::schedule const& schedule() const noexcept { return schedule_; }
  [[nodiscard]] zbpp::program const& program() const noexcept { return program_; }
  /// @return how the program was lowered; the defaults where the caller made it
  [[nodiscard]] lower_options const& options() const noexcept { return options_; }
  /// @return when each pass is predicted to start and end
  [[nodiscard]] zbpp::timeline const& timeline() const noexcept { return timeline_; }

 private:
  std::string policy_;
  zbpp::problem problem_;
  zbpp::schedule schedule_;
  lower_options options_;
  zbpp::program program_;
  zbpp::timeline timeline_;
};

/// Makes the plan of a schedule that is already there.
/// @throws as the constructor of `plan`
[[nodiscard]] inline plan make_plan(
    std::string title, schedule schedule, problem problem, lower_options const& options = {}) {
  return {std::move(title), std::move(problem), std::move(schedule), options};
}

/// Asks a policy for a schedule, lowers and simulates it.
/// @throws error (unsupported_problem) when the policy cannot schedule the problem
template <class Policy>
  requires requires(Policy const& p, problem const& problem) {
    { p(problem) } -> std::same_as<schedule>;
  }
[[nodiscard]] plan make_plan(
    Policy const& decide, problem problem, lower_options const& options = {}) {
  auto schedule = decide(problem);
  if constexpr (policy<Policy>)
    return {std::string(Policy::title), std::move(problem), std::move(schedule), options};
  else
    return {std::string(decide.title()), std::move(problem), std::move(schedule), options};
}

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/plan.ipp>
#endif
