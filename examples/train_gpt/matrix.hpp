// SPDX-License-Identifier: Apache-2.0
//
// Arrays as matrices of Eigen, for those kernels that multiply. Nothing else includes Eigen.
#pragma once

#include "config.hpp"

#include <Eigen/Core>

#if !defined(EIGEN_DONT_PARALLELIZE)
#error "define EIGEN_DONT_PARALLELIZE: a rank is one thread, and a product has one order of sums"
#endif

namespace gpt {

/// Is a matrix of floats, row major.
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Sees an array [rows, columns] as a matrix; rows lie `stride` elements apart.
[[nodiscard]] inline auto as_matrix(float* x, index rows, index columns, index stride) {
  return Eigen::Map<matrix, Eigen::Unaligned, Eigen::OuterStride<>>(
      x, rows, columns, Eigen::OuterStride<>(stride));
}

/// Sees an array [rows, columns] that is only read as a matrix.
[[nodiscard]] inline auto as_matrix(float const* x, index rows, index columns, index stride) {
  return Eigen::Map<matrix const, Eigen::Unaligned, Eigen::OuterStride<>>(
      x, rows, columns, Eigen::OuterStride<>(stride));
}

}  // namespace gpt
