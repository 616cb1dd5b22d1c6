// SPDX-License-Identifier: Apache-2.0
//
// Whether the library that is MPI here takes memory of GPUs, by the extensions of Open MPI and
// MPICH.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/mpi/detail/call.hpp>

#include <mpi.h>

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace zbpp::mpi {

/// Says whether MPI takes addresses of GPU memory: where the library has a call that tells, such as
/// Open MPI and MPICH, and that says so.
/// @throws error (bad_argument) before MPI is initialized or after it is finalized; (io_failed)
///         when MPI refuses
[[nodiscard]] inline bool is_cuda_aware() {
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
