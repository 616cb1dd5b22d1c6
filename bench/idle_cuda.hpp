// SPDX-License-Identifier: Apache-2.0
//
// What a benchmark asks of the CUDA that does nothing.
#pragma once

#include <cstdint>

namespace idle_cuda {

/// @return how many calls of this thread have enqueued something: records, waits, copies, launches
/// of
///         graphs
std::int64_t calls_so_far();

}  // namespace idle_cuda
