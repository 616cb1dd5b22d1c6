// SPDX-License-Identifier: Apache-2.0
//
// What NCCL reports becomes an exception that says which call failed, and keeps NCCL's own code;
// and which versions of NCCL this works with.
#pragma once

#include <zbpp/cuda/error.hpp>
#include <zbpp/error.hpp>

#include <nccl.h>

#include <source_location>
#include <string>

#if NCCL_VERSION_CODE < 22200
#error "zbpp::nccl needs NCCL 2.22 or newer: older ones cannot abort several communicators at once"
#endif

namespace zbpp::nccl {

/// Reports that a call of NCCL failed, or a communicator.
class nccl_error : public error {
 public:
  nccl_error(ncclResult_t native, std::string const& text)
      : error(errc::device_failed, text), native_(native) {}

  /// @return NCCL's own code
  [[nodiscard]] ncclResult_t native() const noexcept { return native_; }

 private:
  ncclResult_t native_;
};

namespace detail {

[[noreturn]] inline void raise(ncclResult_t status, std::source_location const& at) {
  std::string text = std::string("NCCL reports \"") + ncclGetErrorString(status) + "\" (" +
                     std::to_string(static_cast<int>(status)) + ") at " +
                     cuda::detail::to_string(at);
  char const* const last = ncclGetLastError(nullptr);
  if (last != nullptr && *last != '\0') text.append(": ").append(last);
  throw nccl_error(status, text + "; NCCL_DEBUG=INFO in the environment has NCCL say more");
}

/// Lets a call pass that has begun what goes on by itself, as on communicators that do not block.
/// @throws nccl_error
inline void check_started(
    ncclResult_t status, std::source_location at = std::source_location::current()) {
  if (status != ncclSuccess && status != ncclInProgress) raise(status, at);
}

}  // namespace detail

/// Does nothing for success, else throws.
/// @throws nccl_error (device_failed)
inline void check(ncclResult_t status, std::source_location at = std::source_location::current()) {
  if (status != ncclSuccess) detail::raise(status, at);
}

namespace detail {

/// Refuses a library that is older than what the headers promise to work with, or than `least`.
/// @throws error (bad_argument); nccl_error
inline void check_library(int least = 22200) {
  int version = 0;
  check(ncclGetVersion(&version));
  if (version < least)
    throw error(
        errc::bad_argument,
        "the NCCL that this process has loaded is version " + std::to_string(version) +
            "; what is asked of it takes " + std::to_string(least) + " or newer");
}

}  // namespace detail
}  // namespace zbpp::nccl
