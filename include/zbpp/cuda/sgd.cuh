// SPDX-License-Identifier: Apache-2.0
//
// Stochastic gradient descent with momentum on a GPU, which can take a step back. For nvcc.
#pragma once

#include <zbpp/cuda/launch_rows.cuh>
#include <zbpp/cuda/optimizers.hpp>

namespace zbpp::cuda {

/// Is SGD whose kernels nvcc compiles.
using sgd = basic_sgd<row_launcher>;

}  // namespace zbpp::cuda
