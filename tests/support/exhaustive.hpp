// SPDX-License-Identifier: Apache-2.0
//
// The true optimum of tiny problems, by branch and bound over all orders: what planners and lower
// bounds are tested against. It shares the model with the library and none of its analysis.
#pragma once

#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace zbpp::test {

/// Says when a search gives up.
struct search_limits {
  std::int64_t nodes = 1'000'000;  ///< visited states; of each it may remember some 300 bytes
};

/// Holds what a search found out.
struct optimum {
  bool complete = true;            ///< false: it gave up, and the rest is the best it had by then
  std::optional<ticks> cost = {};  ///< nothing when no order fits the memory
  std::vector<std::vector<pass>> order = {};  ///< one of this cost, a row per rank
  std::int64_t nodes = 0;                     ///< visited states
};

/// Searches for the least cost that any order of F, B and W has, and for an order that has it.
/// Stages whose B adds something for W may run BW instead, which adds nothing and takes B + W.
///
/// The cost is that of `simulate`: passes start as soon as they can. Each stage runs its F, its B
/// and its W in ascending microbatch. A rank holds the `static_memory` of its stages and the
/// activations that its order keeps, as in `activation_profile`, within its limit.
///
/// Microbatches out of turn can make a rank begin later, and ranks that wait at will can do so
/// anyhow; now and then that makes a span shorter (`tests/test_exhaustive.cpp`). The least cost
/// with waiting is the least period over all orders, see `period_report`; it is at most this one.
[[nodiscard]] optimum find_optimum(problem const& problem, search_limits limits = {});

/// The least cost, or nothing when no order fits the memory.
/// @throws std::runtime_error when the search gives up
[[nodiscard]] std::optional<ticks> optimal_cost(problem const& problem, search_limits limits = {});

}  // namespace zbpp::test
