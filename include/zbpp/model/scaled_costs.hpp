// SPDX-License-Identifier: Apache-2.0
//
// The costs of a stage whose passes all take longer or shorter by one factor: for a microbatch of
// another size, or on a rank of another speed.
#pragma once

#include <zbpp/model/costs.hpp>

namespace zbpp {

/// Multiplies the times of the passes of a stage, each rounded to the nearest tick; what two take
/// together stays between the longer one and both in turn. All else stays as it is.
[[nodiscard]] stage_costs times_factor(stage_costs const& costs, double factor) noexcept;

/// Gives the costs of a stage on a rank of another speed: all times divided by it, in whole ticks.
/// @param speed  from 0.001 to 1000; at 0.5 all takes twice as long
[[nodiscard]] stage_costs at_speed(stage_costs const& costs, double speed);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/model/impl/scaled_costs.ipp>
#endif
