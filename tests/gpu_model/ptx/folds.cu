// SPDX-License-Identifier: Apache-2.0
#include "folds.hpp"
#include <zbpp/cuda/launch_rows.cuh>

template void zbpp::cuda::launch_rows(cudaStream_t, zbpp::test::fold_rows const&);
