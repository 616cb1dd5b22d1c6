// SPDX-License-Identifier: Apache-2.0
//
// How long one microbatch keeps a stage busy.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>

namespace zbpp::detail {

/// @return the least time in which the passes of one microbatch can run, none of them in a pair
[[nodiscard]] constexpr ticks work_of(stage_costs const& c) noexcept {
  return c.forward + c.of(pass_kind::backward);
}

/// @return the same where as much as can be is paired
[[nodiscard]] constexpr ticks least_work_of(stage_costs const& c) noexcept {
  return work_of(c) - c.saved_by_pairing();
}

}  // namespace zbpp::detail
