// SPDX-License-Identifier: Apache-2.0
//
// What one rank takes its memory from.
#pragma once

#include <zbpp/runtime/arena.hpp>
#include <zbpp/runtime/detail/frame_pool.hpp>

namespace zbpp {

/// Holds the memory of one rank.
struct rank_memory {
  arena buffers;
  frame_pool frames;
};

}  // namespace zbpp
