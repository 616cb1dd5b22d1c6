// SPDX-License-Identifier: Apache-2.0
//
// The one place that launches kernels. Compiled by nvcc, a launch is a thread block a row; compiled
// for the model of CUDA, it is a host function that the model runs, with what it reads and writes.
#pragma once

#include "lanes.hpp"
#include "touching.hpp"
#include <zbpp/cuda/error.hpp>

namespace gpt::cuda {

#ifdef ZBPP_CUDA_MODEL

/// Appends a row function to a stream of the model.
/// @throws zbpp::cuda::cuda_error
template <class Rows>
void launch_rows(cudaStream_t on, Rows const& what) {
  touching touched;
  what.touches(touched);
  auto const body = [what] {
    for (index row = 0; row < what.rows(); ++row) what(lanes(), row);
  };
  // Own choice: a microsecond a row of the model's time, so that measured times say something.
  zbpp::cuda::check(zbpp::cuda_model::launch(
      on, Rows::name, touched.read(), touched.written(), body, 1000 * what.rows()));
}

#else

/// Runs one row on one block.
template <class Rows>
__global__ void __launch_bounds__(lanes::count) run_row(Rows const what) {
  what(lanes(), static_cast<index>(blockIdx.x));
}

/// Launches a row function on a stream.
/// @throws zbpp::cuda::cuda_error
template <class Rows>
void launch_rows(cudaStream_t on, Rows const& what) {
  run_row<<<static_cast<unsigned>(what.rows()), lanes::count, 0, on>>>(what);
  zbpp::cuda::check(cudaGetLastError());
}

#endif

}  // namespace gpt::cuda
