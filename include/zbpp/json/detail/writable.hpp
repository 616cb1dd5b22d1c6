// SPDX-License-Identifier: Apache-2.0
//
// What a plan must satisfy so that it can be written and checked. Only `impl/*.ipp` include it.
#pragma once

#include <vector>

namespace zbpp::json {

struct plan_report;

namespace detail {

/// Refuses what the reader would refuse.
/// @throws error (bad_argument)
void check_writable(plan_report const& from);

/// @return whether a list can be the first layer of each stage
[[nodiscard]] bool are_first_layers(std::vector<int> const& list, int stages);

}  // namespace detail
}  // namespace zbpp::json
