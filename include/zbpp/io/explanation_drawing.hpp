// SPDX-License-Identifier: Apache-2.0
//
// Explanations of measured steps as timelines to draw: the plan, and the step below it with what
// took longer and the critical path.
#pragma once

#include <zbpp/analysis/explain.hpp>
#include <zbpp/analysis/plan.hpp>
#include <zbpp/io/drawing.hpp>
#include <zbpp/model/timeline.hpp>

#include <vector>

namespace zbpp {

/// Makes the timelines `planned` and `measured`, for `to_svg` and `to_chrome_trace`. The second
/// begins at 0 and has the critical path, and what passes took beyond their plan.
/// @param planned   the plan that ran
/// @param measured  the passes of all ranks, on one clock
/// @param step      what `explain` found of both
/// @throws error (bad_argument) when they do not belong together
[[nodiscard]] std::vector<named_timeline> explanation_drawing(
    plan const& planned, timeline const& measured, explanation const& step);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/explanation_drawing.ipp>
#endif
