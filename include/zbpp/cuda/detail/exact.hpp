// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic that is rounded after each operation, whatever flags a kernel is compiled with.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>

namespace zbpp::cuda::detail {

/// Is a float whose products are never fused with sums, so that steps have the same bits in every
/// kernel, and on the host.
struct exact {
  float value;

  exact() = default;
  __host__ __device__ exact(float from) : value(from) {}

#ifdef __CUDA_ARCH__
  __device__ friend exact operator+(exact a, exact b) { return __fadd_rn(a.value, b.value); }
  __device__ friend exact operator-(exact a, exact b) { return __fsub_rn(a.value, b.value); }
  __device__ friend exact operator*(exact a, exact b) { return __fmul_rn(a.value, b.value); }
  __device__ friend exact operator/(exact a, exact b) { return __fdiv_rn(a.value, b.value); }
  __device__ friend exact sqrt(exact a) { return __fsqrt_rn(a.value); }
#else
  __host__ __device__ friend exact operator+(exact a, exact b) { return a.value + b.value; }
  __host__ __device__ friend exact operator-(exact a, exact b) { return a.value - b.value; }
  __host__ __device__ friend exact operator*(exact a, exact b) { return a.value * b.value; }
  __host__ __device__ friend exact operator/(exact a, exact b) { return a.value / b.value; }
  __host__ __device__ friend exact sqrt(exact a) { return std::sqrt(a.value); }
#endif
};

}  // namespace zbpp::cuda::detail
