// SPDX-License-Identifier: Apache-2.0
//
// Whether the library that is MPI here takes memory of GPUs.
#pragma once

namespace zbpp::mpi {

/// Says whether MPI takes addresses of GPU memory: where the library has a call that tells, such as
/// Open MPI and MPICH, and that says so.
/// @throws error (bad_argument) before MPI is initialized or after it is finalized; (io_failed)
///         when MPI refuses
[[nodiscard]] bool is_cuda_aware();

}  // namespace zbpp::mpi

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/mpi/impl/cuda_aware.ipp>
#endif
