// SPDX-License-Identifier: Apache-2.0
//
// Whether the host issues every step on GPUs, or the device replays one that was captured.
#pragma once

#include <cstdint>

namespace zbpp::cuda {

/// Says who puts together the work of a step.
enum class replay : std::uint8_t {
  none,  ///< the host issues each step, pass by pass
  step,  ///< a step is captured as one graph, and the device replays it
};

}  // namespace zbpp::cuda
