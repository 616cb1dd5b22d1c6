// SPDX-License-Identifier: Apache-2.0
//
// What the CSV readers make of two passes that stand in one cell.
#pragma once

#include <cstdint>

namespace zbpp {

/// Says what a reader makes of a pair such as `(0F7;7B3)OVERLAP_F_B`.
enum class csv_pairs : std::uint8_t {
  in_turn,   ///< two passes one after the other, in the order written
  together,  ///< a pair: the F, then the B or BW, which is paired
};

}  // namespace zbpp
