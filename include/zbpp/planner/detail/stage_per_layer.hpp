// SPDX-License-Identifier: Apache-2.0
//
// The plan of a cut model with one stage for each layer. Stages that are single layers can change
// ranks between steps, so that another cut needs no other stages.
#pragma once

#include <zbpp/model/pass.hpp>
#include <zbpp/model/placement.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/search.hpp>

#include <optional>

namespace zbpp::detail {

/// Gives a plan in which each layer is a stage of the rank that has it, and each pass of a stage is
/// the passes of its layers one after another. A step costs the same, but for roundings to ticks. A
/// plan without layers stays as it is.
/// @throws error (unsupported_problem) when a stage recomputes, or F and B run in pairs
[[nodiscard]] found_plan stage_per_layer(found_plan const& found);

/// @return the first pass that runs together with an F, or an F again; nothing where there is none
[[nodiscard]] std::optional<pass> find_beside_or_again(schedule const& order);

/// @return the same model, whose plans neither recompute nor pair F and B
[[nodiscard]] problem plain_layers(problem const& model);

/// @return the placement with neighbouring stages of a rank as one, but for the middle of a V
[[nodiscard]] placement merged_placement(placement const& placement);

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/stage_per_layer.ipp>
#endif
