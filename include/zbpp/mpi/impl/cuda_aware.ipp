// SPDX-License-Identifier: Apache-2.0
//
// What mpi/cuda_aware.hpp declares, by the extensions of Open MPI and MPICH.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/mpi/cuda_aware.hpp>
#include <zbpp/mpi/detail/call.hpp>

#include <mpi.h>

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace zbpp::mpi {

ZBPP_INLINE bool is_cuda_aware() {
  int is_initialized = 0;
  detail::check(MPI_Initialized(&is_initialized), "MPI_Initialized");
  zbpp::detail::require(
      is_initialized != 0 && !detail::is_finalized(),
      "is_cuda_aware asks MPI, which is not initialized or is finalized; make a rendezvous first");
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#elif defined(MPIX_GPU_SUPPORT_CUDA)
  int is_supported = 0;
  detail::check(
      MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &is_supported), "MPIX_GPU_query_support");
  return is_supported != 0;
#else
  return false;
#endif
}

}  // namespace zbpp::mpi
