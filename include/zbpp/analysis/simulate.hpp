// SPDX-License-Identifier: Apache-2.0
//
// Says when every pass of a schedule would run. Ranks run their passes in order; a pass starts when
// its rank is free and what it waits for has arrived; a transfer takes its time but occupies no
// rank. So the paper's bubble rates come out digit for digit.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/model/timeline.hpp>

namespace zbpp {

/// Gives every pass of a schedule its start and end.
/// @throws error (bad_argument) when schedule and problem differ in placement or microbatches;
///         (refused_program) naming a pass that can never start or that stands twice
/// @source arXiv 2401.10241 sec. 5.3
/// @complexity O(passes)
[[nodiscard]] timeline simulate(schedule const& schedule, problem const& problem);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/analysis/impl/simulate.ipp>
#endif
