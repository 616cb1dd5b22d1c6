// SPDX-License-Identifier: Apache-2.0
//
// AdamW on a GPU, which can take a step back. For nvcc.
#pragma once

#include <zbpp/cuda/launch_rows.cuh>
#include <zbpp/cuda/optimizers.hpp>

namespace zbpp::cuda {

/// Is AdamW whose kernels nvcc compiles.
using adamw = basic_adamw<row_launcher>;

}  // namespace zbpp::cuda
