// SPDX-License-Identifier: Apache-2.0
//
// A policy decides, ahead of time and from the problem alone, in which order each rank runs its
// passes. It is a value of a type: its settings are its members.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>

#include <concepts>
#include <string>
#include <string_view>

namespace zbpp {

/// Models a way to order passes.
///
/// Models also promise: the same problem gives the same schedule, every pass of every stage and
/// microbatch stands in it once, W of a stage ascends in microbatch, and a problem that the policy
/// cannot schedule is an `error` (unsupported_problem) saying what it needs.
template <class Policy>
concept policy = requires(Policy const& p, problem const& problem) {
  { Policy::name } -> std::convertible_to<std::string_view>;     // an identifier: zb_h1
  { Policy::title } -> std::convertible_to<std::string_view>;    // as people write it: ZB-H1
  { Policy::summary } -> std::convertible_to<std::string_view>;  // a few words
  { p(problem) } -> std::same_as<schedule>;
};

namespace detail {

/// Throws `errc::unsupported_problem`, "`title` `needs`", unless `good` holds.
inline void support(bool good, std::string_view title, std::string const& needs) {
  if (!good) throw error(errc::unsupported_problem, std::string(title).append(" ").append(needs));
}

inline void support_v_shape(problem const& problem, std::string_view title) {
  support(
      problem.placement().is_v_shape(),
      title,
      "needs a v placement, two stages per rank; this one is " + problem.placement().name());
}

}  // namespace detail
}  // namespace zbpp
