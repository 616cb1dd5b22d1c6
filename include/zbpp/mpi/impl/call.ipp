// SPDX-License-Identifier: Apache-2.0
//
// What mpi/detail/call.hpp declares. MPI_Finalize deletes the attributes of MPI_COMM_SELF first, so
// an attribute there is told of it while MPI still works.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/mpi/detail/call.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <mpi.h>
#include <string>
#include <thread>

namespace zbpp::mpi::detail {

ZBPP_INLINE void check(int code, char const* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  throw error(errc::io_failed) + call + " failed: " +
      (length > 0 ? std::string(text.data(), zbpp::detail::index(length))
                  : "error " + std::to_string(code));
}

ZBPP_INLINE void await(MPI_Request& request, std::chrono::steady_clock::time_point end) noexcept {
  int is_done = 0;
  while (MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) == MPI_SUCCESS && is_done == 0 &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

ZBPP_INLINE void abort_together() noexcept {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Request all = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &all);
  await(all, std::chrono::steady_clock::now() + std::chrono::seconds(1));
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::terminate();
}

ZBPP_INLINE bool is_finalized() noexcept {
  int is_over = 0;
  return MPI_Finalized(&is_over) == MPI_SUCCESS && is_over != 0;
}

ZBPP_INLINE void call_at_finalize(MPI_Comm_delete_attr_function* call) noexcept {
  int key = MPI_KEYVAL_INVALID;
  if (is_finalized()) return;
  if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, call, &key, nullptr) == MPI_SUCCESS)
    MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
}

ZBPP_INLINE void fail_at_finalize() noexcept {
  static std::atomic<bool> is_noted{false};
  if (is_noted.exchange(true)) return;
  call_at_finalize([](MPI_Comm, int, void*, void*) -> int { abort_together(); });
}

}  // namespace zbpp::mpi::detail
