// SPDX-License-Identifier: Apache-2.0
//
// What is asked for: what is to be done, for which problem, and where the answer goes.
#pragma once

#include "outputs.hpp"
#include <zbpp/io/text.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/planner/search.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace planning {

/// Says what the program is to do.
enum class task : std::uint8_t { plan, list, check, compare, sweep, explain };

/// Holds what the command line says.
struct options {
  planning::task task = task::plan;
  std::string policy;                    ///< empty: orders are searched
  std::vector<std::string> policies;     ///< to compare
  std::string check;                     ///< file to check
  std::vector<zbpp::bytes> limits;       ///< of a sweep
  std::string explain;                   ///< trace of the step to explain
  std::string plan_file;                 ///< that the step ran
  std::string against;                   ///< trace of another step; or empty
  std::optional<zbpp::problem> problem;  ///< every task but `list`, `check` and `explain` has one
  std::optional<zbpp::placement> placement;              ///< if it is on the command line
  zbpp::time_unit unit = zbpp::time_unit::milliseconds;  ///< of the problem
  std::string problem_file;                              ///< empty: the problem comes from options
  outputs out;
  bool gpus = false;              ///< whether to tell what a plan needs of GPUs
  std::optional<double> seconds;  ///< if it is on the command line
  std::uint64_t seed = zbpp::search_settings{}.seed;
};

}  // namespace planning
