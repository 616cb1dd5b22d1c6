// SPDX-License-Identifier: Apache-2.0
//
// How long one microbatch keeps a stage busy.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>

namespace zbpp::detail {

/// @return the least time in which the passes of one microbatch can run
[[nodiscard]] constexpr ticks work_of(stage_costs const& c) noexcept {
  return c.forward + c.of(pass_kind::backward);
}

}  // namespace zbpp::detail
