// SPDX-License-Identifier: Apache-2.0
//
// The layers of a model: what each costs, and what a run of them costs as a stage.
#pragma once

#include <zbpp/model/costs.hpp>

#include <span>

namespace zbpp {

/// States what one layer costs: what a stage of this layer alone would.
using layer_costs = stage_costs;

/// Adds up the layers of a stage, of which there is at least one.
///
/// Times and sizes add up; `edge` is the last layer's, `workspace` the greatest. With R, layers
/// that state a time for it are made again, and those that do not keep their activation: of each
/// run of layers that are made again the stage keeps the `recompute_input` of the first.
[[nodiscard]] stage_costs merge_layers(std::span<layer_costs const> layers);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/layers.ipp>
#endif
