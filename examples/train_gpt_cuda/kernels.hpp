// SPDX-License-Identifier: Apache-2.0
//
// The kernels, as code that is not compiled by nvcc sees them: `run(stream, kernel)`.
#pragma once

#include "rows_backward.hpp"
#include "rows_weight.hpp"

#include <cuda_runtime_api.h>

namespace gpt::cuda {

/// Enqueues a kernel: a class of rows_forward.hpp, rows_backward.hpp or rows_weight.hpp. Kernels of
/// other classes are not in kernels.cpp, and do not link.
/// @throws zbpp::cuda::cuda_error
template <class Rows>
void run(cudaStream_t on, Rows const& what);

}  // namespace gpt::cuda
