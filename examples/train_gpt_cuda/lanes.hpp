// SPDX-License-Identifier: Apache-2.0
//
// What the rows of a kernel are written over: 256 lanes that share the elements of a row. On a GPU
// they are a thread block; on the host, where the tests run, a loop that adds in the same order.
#pragma once

#include "train_gpt/config.hpp"

#include <cuda_bf16.h>

#include <cmath>

namespace gpt::cuda {

/// Is what activations and the weights of products are made of.
using bf16 = __nv_bfloat16;

/// Reads an element.
[[nodiscard]] __host__ __device__ inline float wide(bf16 x) { return __bfloat162float(x); }
/// Rounds to the nearest element, ties to even.
[[nodiscard]] __host__ __device__ inline bf16 narrow(float x) { return __float2bfloat16(x); }

/// Works on one row. Element i belongs to lane i mod 256, in every loop over the row: what a lane
/// wrote it may read again, and what others wrote it may not.
class lanes {
 public:
  static constexpr int count = 256;  ///< threads of a block

  /// Does something for every element.
  template <class Do>
  __host__ __device__ void each(index elements, Do element) const {
    for (index i = first(); i < elements; i += stride()) element(i);
  }

  /// Adds the terms, in an order that depends on their number alone.
  template <class Term>
  [[nodiscard]] __host__ __device__ float sum(index elements, Term term) const {
    return fold(elements, term, 0.0F, [](float a, float b) { return a + b; });
  }

  /// Gives the largest of the terms.
  template <class Term>
  [[nodiscard]] __host__ __device__ float largest(index elements, Term term) const {
    return fold(elements, term, -INFINITY, [](float a, float b) { return a < b ? b : a; });
  }

 private:
  static constexpr int warp = 32;
  static constexpr int warps = count / warp;

#ifdef __CUDA_ARCH__
  [[nodiscard]] __device__ static index first() { return threadIdx.x; }
  [[nodiscard]] __device__ static index stride() { return count; }
#else
  [[nodiscard]] static index first() { return 0; }
  [[nodiscard]] static index stride() { return 1; }
#endif

  // Halves the values until one is left; `size` is a power of two.
  template <class Two>
  __host__ __device__ static float tree(float* values, int size, Two two) {
    for (int half = size / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) values[i] = two(values[i], values[i + half]);
    return values[0];
  }

  // Each lane folds its own elements, each warp its lanes as a tree, and then the warps the same.
  template <class Term, class Two>
  [[nodiscard]] __host__ __device__ static float fold(
      index elements, Term term, float nothing, Two two) {
#ifdef __CUDA_ARCH__
    __shared__ float of_warp[warps];
    float own = nothing;
    for (index i = threadIdx.x; i < elements; i += count) own = two(own, term(i));
    for (int half = warp / 2; half > 0; half /= 2)
      own = two(own, __shfl_down_sync(0xffffffffU, own, half));
    if (threadIdx.x % warp == 0) of_warp[threadIdx.x / warp] = own;
    __syncthreads();
    float all[warps];
    for (int w = 0; w < warps; ++w) all[w] = of_warp[w];
    __syncthreads();  // the next fold writes there again
    return tree(all, warps, two);
#else
    float of_lane[count];
    for (int lane = 0; lane < count; ++lane) {
      of_lane[lane] = nothing;
      for (index i = lane; i < elements; i += count) of_lane[lane] = two(of_lane[lane], term(i));
    }
    float of_warp[warps];
    for (int w = 0; w < warps; ++w) of_warp[w] = tree(of_lane + w * warp, warp, two);
    return tree(of_warp, warps, two);
#endif
  }
};

}  // namespace gpt::cuda
