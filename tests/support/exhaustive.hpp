// SPDX-License-Identifier: Apache-2.0
//
// The true optimum of tiny problems, which planners and lower bounds are tested against. The search
// is the library's own; tests/planner/test_exhaustive.cpp compares it with every order.
#pragma once

#include <zbpp/analysis/detail/exhaustive_search.hpp>
#include <zbpp/model/problem.hpp>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace zbpp::test {

using detail::find_optimum;
using detail::optimum;
using search_limits = detail::exhaustive_limits;

/// The least cost, or nothing when no order fits the memory.
///
/// Microbatches out of turn can make a rank begin later, and ranks that wait at will can do so
/// anyhow; now and then that makes a span shorter (`tests/planner/test_exhaustive.cpp`). The least
/// cost with waiting is the least period over all orders, see `period_report`; it is at most this
/// one.
/// @throws std::runtime_error when the search gives up
[[nodiscard]] inline std::optional<ticks> optimal_cost(
    problem const& problem, search_limits const& limits = {}) {
  auto const found = find_optimum(problem, limits);
  if (!found.complete)
    throw std::runtime_error(
        "exhaustive search: gave up after " + std::to_string(limits.nodes) + " states");
  return found.cost;
}

}  // namespace zbpp::test
