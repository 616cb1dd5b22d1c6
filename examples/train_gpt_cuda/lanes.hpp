// SPDX-License-Identifier: Apache-2.0
//
// What the rows of a kernel are written over, and the numbers that they read.
#pragma once

#include "train_gpt/config.hpp"
#include <zbpp/cuda/lanes.hpp>

#include <cuda_bf16.h>

namespace gpt::cuda {

/// Is what activations and the weights of products are made of.
using bf16 = __nv_bfloat16;

/// Reads an element.
[[nodiscard]] __host__ __device__ inline float wide(bf16 x) { return __bfloat162float(x); }
/// Rounds to the nearest element, ties to even.
[[nodiscard]] __host__ __device__ inline bf16 narrow(float x) { return __float2bfloat16(x); }

using zbpp::cuda::lanes;

}  // namespace gpt::cuda
