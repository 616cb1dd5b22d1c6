// SPDX-License-Identifier: Apache-2.0
//
// What a plan must satisfy so that it can be written and checked. Only `impl/*.ipp` include it.
#pragma once

namespace zbpp::json {

struct plan_report;

namespace detail {

/// Refuses what the reader would refuse.
/// @throws error (bad_argument)
void check_writable(plan_report const& from);

}  // namespace detail
}  // namespace zbpp::json
