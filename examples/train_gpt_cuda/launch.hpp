// SPDX-License-Identifier: Apache-2.0
//
// The one place that launches kernels. Compiled by nvcc, a launch is a thread block a row; compiled
// for the model of CUDA, it is a host function that the model runs, with what it reads and writes.
#pragma once

#include "lanes.hpp"
#include "touching.hpp"
#ifdef ZBPP_CUDA_MODEL
#include <zbpp/cuda/error.hpp>
#else
#include <zbpp/cuda/launch_rows.cuh>
#endif

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

using zbpp::cuda::launch_rows;

#endif

}  // namespace gpt::cuda
