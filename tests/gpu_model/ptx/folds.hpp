// SPDX-License-Identifier: Apache-2.0
//
// A row function that folds several times in a row, which kernels of users may and ours do not.
#pragma once

#include <zbpp/cuda/lanes.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace zbpp::test {

/// Takes the largest of each row of x [count, width], and sums of what is left without it, without
/// that sum, and so on.
struct fold_rows {
  float const* x;
  std::int64_t count, width;
  float* largest;  ///< [count]
  float* sums;     ///< [count], the last ones

  [[nodiscard]] std::int64_t rows() const { return count; }
  __host__ __device__ void operator()(cuda::lanes const& at, std::int64_t row) const {
    auto const& self = *this;
    auto const* const own = x + row * width;
    float const most = at.largest(width, [own](std::int64_t i) { return own[i]; });
    float last = most;
    for (int pass = 0; pass < 3; ++pass)
      last = at.sum(width, [own, last](std::int64_t i) { return own[i] - last; });
    at.each(1, [&](std::int64_t) {
      self.largest[row] = most;
      self.sums[row] = last;
    });
  }
};

}  // namespace zbpp::test
