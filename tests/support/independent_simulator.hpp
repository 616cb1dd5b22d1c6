// SPDX-License-Identifier: Apache-2.0
//
// A second simulator, to check `zbpp::simulate` against: one queue of events for all ranks, taken
// in order of time. It shares the model with the library and no code with the first.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>

#include <optional>

namespace zbpp::test {

/// Gives every pass its start and end, or nothing when the ranks deadlock.
[[nodiscard]] std::optional<timeline> simulate_by_events(
    schedule const& order, problem const& problem);

}  // namespace zbpp::test
