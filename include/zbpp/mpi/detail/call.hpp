// SPDX-License-Identifier: Apache-2.0
//
// Calls of MPI: their errors as those of zbpp, and how a failed run ends.
#pragma once

#include <chrono>
#include <mpi.h>

namespace zbpp::mpi::detail {

/// Throws unless a call of MPI has succeeded.
/// @param call  its name, for the message
/// @throws error (io_failed)
void check(int code, char const* call);

/// @return whether MPI_Finalize was called, after which MPI takes no other calls
[[nodiscard]] bool is_finalized() noexcept;

/// Has MPI_Finalize call something before anything else, unless it has been called.
void call_at_finalize(MPI_Comm_delete_attr_function* call) noexcept;
/// Waits for a request until a time.
void await(MPI_Request& request, std::chrono::steady_clock::time_point end) noexcept;
/// Waits up to a second for the other ranks, so that each can say why it ends, and ends all.
[[noreturn]] void abort_together() noexcept;
/// Has MPI_Finalize end with MPI_Abort, since a run has failed.
void fail_at_finalize() noexcept;

}  // namespace zbpp::mpi::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/mpi/impl/call.ipp>
#endif
