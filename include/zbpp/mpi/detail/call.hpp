// SPDX-License-Identifier: Apache-2.0
//
// Calls of MPI: their errors as those of zbpp, and how a failed run ends. MPI_Finalize deletes the
// attributes of MPI_COMM_SELF first, so an attribute there is told of it while MPI still works.
#pragma once

#include <zbpp/error.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <mpi.h>
#include <string>
#include <thread>

namespace zbpp::mpi::detail {

/// Throws unless a call of MPI has succeeded.
/// @param call  its name, for the message
/// @throws error (io_failed)
inline void check(int code, char const* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  throw error(errc::io_failed) + call + " failed: " +
      (length > 0 ? std::string(text.data(), zbpp::detail::index(length))
                  : "error " + std::to_string(code));
}

/// @return whether MPI_Finalize was called, after which MPI takes no other calls
[[nodiscard]] inline bool is_finalized() noexcept {
  int is_over = 0;
  return MPI_Finalized(&is_over) == MPI_SUCCESS && is_over != 0;
}

/// Has MPI_Finalize call something before anything else, unless it has been called.
inline void call_at_finalize(MPI_Comm_delete_attr_function* call) noexcept {
  int key = MPI_KEYVAL_INVALID;
  if (is_finalized()) return;
  if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, call, &key, nullptr) == MPI_SUCCESS)
    MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
}

/// Waits for a request until a time.
inline void await(MPI_Request& request, std::chrono::steady_clock::time_point end) noexcept {
  int is_done = 0;
  while (MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) == MPI_SUCCESS && is_done == 0 &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// Waits up to a second for the other ranks, so that each can say why it ends, and ends all.
[[noreturn]] inline void abort_together() noexcept {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Request all = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &all);
  await(all, std::chrono::steady_clock::now() + std::chrono::seconds(1));
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::terminate();
}

/// Has MPI_Finalize end with MPI_Abort, since a run has failed.
inline void fail_at_finalize() noexcept {
  static std::atomic<bool> is_noted{false};
  if (is_noted.exchange(true)) return;
  call_at_finalize([](MPI_Comm, int, void*, void*) -> int { abort_together(); });
}

}  // namespace zbpp::mpi::detail
