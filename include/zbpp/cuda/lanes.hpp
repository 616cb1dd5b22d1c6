// SPDX-License-Identifier: Apache-2.0
//
// 256 lanes that share the elements of a row, which kernels work on. On a GPU they are the threads
// of a block; on the host, where tests run, a loop that adds in the same order.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>

namespace zbpp::cuda {

/// Works on one row. Element i belongs to lane i mod 256, in every loop over the row: what a lane
/// wrote it may read again, and what others wrote it may not.
class lanes {
 public:
  static constexpr int count = 256;  ///< threads of a block

  /// Does something for every element.
  template <class Do>
  __host__ __device__ void each(std::int64_t elements, Do element) const {
    for (auto i = first(); i < elements; i += stride()) element(i);
  }

  /// Adds the terms, in an order that depends on their number alone.
  template <class Term>
  [[nodiscard]] __host__ __device__ auto sum(std::int64_t elements, Term term) const {
    using value = decltype(term(elements));
    return fold(elements, term, value(0), [](value a, value b) { return a + b; });
  }

  /// Gives the largest of the terms.
  template <class Term>
  [[nodiscard]] __host__ __device__ auto largest(std::int64_t elements, Term term) const {
    using value = decltype(term(elements));
    return fold(elements, term, static_cast<value>(-INFINITY), [](value a, value b) {
      return a < b ? b : a;
    });
  }

 private:
  static constexpr int warp = 32;
  static constexpr int warps = count / warp;

#ifdef __CUDA_ARCH__
  [[nodiscard]] __device__ static std::int64_t first() { return threadIdx.x; }
  [[nodiscard]] __device__ static std::int64_t stride() { return count; }
#else
  [[nodiscard]] static std::int64_t first() { return 0; }
  [[nodiscard]] static std::int64_t stride() { return 1; }
#endif

  // Halves the values until one is left; `size` is a power of two.
  template <class Value, class Two>
  __host__ __device__ static Value tree(Value* values, int size, Two two) {
    for (int half = size / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) values[i] = two(values[i], values[i + half]);
    return values[0];
  }

  // Each lane folds its own elements, each warp its lanes as a tree, and then the warps the same.
  template <class Term, class Value, class Two>
  [[nodiscard]] __host__ __device__ static Value fold(
      std::int64_t elements, Term term, Value nothing, Two two) {
#ifdef __CUDA_ARCH__
    __shared__ Value of_warp[warps];
    Value own = nothing;
    for (std::int64_t i = threadIdx.x; i < elements; i += count) own = two(own, term(i));
    for (int half = warp / 2; half > 0; half /= 2)
      own = two(own, __shfl_down_sync(0xffffffffU, own, half));
    if (threadIdx.x % warp == 0) of_warp[threadIdx.x / warp] = own;
    __syncthreads();
    Value all[warps];
    for (int w = 0; w < warps; ++w) all[w] = of_warp[w];
    __syncthreads();  // the next fold writes there again
    return tree(all, warps, two);
#else
    Value of_lane[count];
    for (int lane = 0; lane < count; ++lane) {
      of_lane[lane] = nothing;
      for (std::int64_t i = lane; i < elements; i += count)
        of_lane[lane] = two(of_lane[lane], term(i));
    }
    Value of_warp[warps];
    for (int w = 0; w < warps; ++w) of_warp[w] = tree(of_lane + w * warp, warp, two);
    return tree(of_warp, warps, two);
#endif
  }
};

}  // namespace zbpp::cuda
