// SPDX-License-Identifier: Apache-2.0
//
// A plan: a problem, the schedule a policy made for it, the program that runs it, and what it is
// predicted to cost. This is what a pipeline is made from.
#pragma once

#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/program.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/policy/policy.hpp>

#include <concepts>
#include <string>
#include <utility>

namespace zbpp {

/// Holds everything known about a step before it runs.
struct plan {
  std::string policy;  ///< title of the policy that made it
  problem what;
  schedule order;
  program code;
  timeline predicted;
};

/// Makes the plan of a schedule that is already there.
/// @throws error (refused_program) with what `verify` finds when a pass could never start; else as
///         `simulate` and `lower` do
[[nodiscard]] inline plan make_plan(
    std::string title, schedule order, problem what, lower_options options = {}) {
  auto code = lower(order, options);
  try {
    auto predicted = simulate(order, what);
    return {
        std::move(title), std::move(what), std::move(order), std::move(code), std::move(predicted)};
  } catch (error const& stuck) {
    if (stuck.code() == errc::refused_program) verify_or_throw(code, what);
    throw;
  }
}

/// Asks a policy for a schedule, lowers and simulates it.
/// @throws error (unsupported_problem) when the policy cannot schedule the problem
template <class Policy>
  requires requires(Policy const& p, problem const& what) {
    { p(what) } -> std::same_as<schedule>;
  }
[[nodiscard]] plan make_plan(Policy const& decide, problem what, lower_options options = {}) {
  auto order = decide(what);
  if constexpr (policy<Policy>)
    return make_plan(std::string(Policy::title), std::move(order), std::move(what), options);
  else
    return make_plan(std::string(decide.title()), std::move(order), std::move(what), options);
}

}  // namespace zbpp
