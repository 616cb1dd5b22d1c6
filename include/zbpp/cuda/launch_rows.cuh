// SPDX-License-Identifier: Apache-2.0
//
// Launches kernels that are written over `lanes`. For nvcc.
#pragma once

#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/lanes.hpp>
#include <zbpp/optim/layer.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace zbpp::cuda {

namespace detail {

template <class Rows>
__global__ void __launch_bounds__(lanes::count) run_row(Rows const rows) {
  rows(lanes(), static_cast<std::int64_t>(blockIdx.x));
}

}  // namespace detail

/// Launches a row function on a stream: one thread block for each of `what.rows()`.
/// @param rows  called with `lanes` and the number of a row; at most 2^31 - 1 rows
/// @throws cuda_error
template <class Rows>
void launch_rows(cudaStream_t on, Rows const& rows) {
  if (rows.rows() == 0) return;
  detail::run_row<<<static_cast<unsigned>(rows.rows()), lanes::count, 0, on>>>(rows);
  check(cudaGetLastError());
}

/// Launches the kernels of optimizers.
struct row_launcher {
  template <class Rows>
  static void run(cudaStream_t on, Rows const& rows, std::span<optim::layer const> /*changed*/) {
    launch_rows(on, rows);
  }
};

}  // namespace zbpp::cuda
