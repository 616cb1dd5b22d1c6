// SPDX-License-Identifier: Apache-2.0
//
// What analysis/plan.hpp declares.
#pragma once

#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/verify.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <utility>

namespace zbpp {

namespace detail {

/// Lowers a schedule with the tied stages and the replicas of its problem.
ZBPP_INLINE program
lower_for(schedule const& schedule, problem const& problem, lower_options options) {
  if (fits(schedule, problem)) {
    options.tied = problem.tied_stages();
    options.reduces = problem.replicas().count > 1;
    options.shards_optimizer = problem.replicas().shards_optimizer;
  }
  return lower(schedule, std::move(options));
}

}  // namespace detail

ZBPP_INLINE plan::plan(
    std::string policy,
    zbpp::problem problem,
    zbpp::schedule schedule,
    lower_options const& options)
    : plan(std::move(policy), problem, schedule, detail::lower_for(schedule, problem, options)) {
  options_ = options;
}

ZBPP_INLINE plan::plan(
    std::string policy, zbpp::problem problem, zbpp::schedule schedule, zbpp::program program)
    : policy_(std::move(policy)),
      problem_(std::move(problem)),
      schedule_(std::move(schedule)),
      program_(std::move(program)) {
  detail::require_fit(program_, problem_);
  try {
    timeline_ = simulate(schedule_, problem_);
  } catch (error const& stuck) {
    if (stuck.code() == errc::refused_program) verify_or_throw(program_, problem_);
    throw;
  }
}

}  // namespace zbpp
