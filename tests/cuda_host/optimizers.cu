// SPDX-License-Identifier: Apache-2.0
//
// The optimizers for GPUs, compiled by nvcc with all of their kernels.
#include <zbpp/cuda/adamw.cuh>
#include <zbpp/cuda/sgd.cuh>

template class zbpp::cuda::detail::
    layer_optimizer<zbpp::cuda::detail::adamw_rule, zbpp::cuda::row_launcher>;
template class zbpp::cuda::detail::
    layer_optimizer<zbpp::cuda::detail::sgd_rule, zbpp::cuda::row_launcher>;
