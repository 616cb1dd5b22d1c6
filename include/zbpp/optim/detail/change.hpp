// SPDX-License-Identifier: Apache-2.0
//
// What one step of an optimizer changes, on the CPU and on GPUs.
#pragma once

#include <cstdint>

namespace zbpp::optim::detail {

/// Says what a step is to change: with `undo_method::weights`, moments follow when it is final.
enum class change : std::uint8_t { weights, moments, both };

}  // namespace zbpp::optim::detail
