// SPDX-License-Identifier: Apache-2.0
//
// What kernels of this folder write, in one text for GPUs and for the tests' model of CUDA. It is
// compiled without contraction to fused operations, so that both give the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace zbpp::bench {

/// @return element i of what `scale` writes
__host__ __device__ inline float scaled(float const* from, float factor, float addend, int i) {
  float const value = from == nullptr ? static_cast<float>(i) : from[i];
  return factor * value + addend;
}

/// @return element i of what `multiply` writes
__host__ __device__ inline float multiplied(
    float const* to, float const* a, float const* b, bool adds, int i) {
  float const product = a[i] * b[i];
  return adds ? to[i] + product : product;
}

/// @return what `fold` makes of a sum
__host__ __device__ inline float folded(float sum, float const* x, float const* g, int count) {
  for (int i = 0; i < count; ++i) sum = sum * 0.5F + x[i] * g[i];
  return sum;
}

/// @return element i of what `fill_bf16` rounds
__host__ __device__ inline float filled(std::size_t i, std::uint32_t seed) {
  auto bits = static_cast<std::uint32_t>(i) * 2654435761U + seed;
  bits ^= bits >> 15;
  bits *= 2246822519U;
  bits ^= bits >> 13;
  return static_cast<float>(bits >> 8) * 0x1p-23F - 1;
}

}  // namespace zbpp::bench
