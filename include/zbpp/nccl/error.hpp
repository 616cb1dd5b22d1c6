// SPDX-License-Identifier: Apache-2.0
//
// Turns what NCCL reports into an exception that says which call failed and keeps NCCL's own code;
// and states which versions of NCCL this works with.
#pragma once

#include <zbpp/cuda/error.hpp>
#include <zbpp/error.hpp>

#include <nccl.h>

#include <source_location>
#include <string>

#if NCCL_VERSION_CODE < 22200
#error "zbpp::nccl needs NCCL 2.22 or newer; older ones cannot abort several communicators at once"
#endif

namespace zbpp::nccl {

/// Reports that a call of NCCL or a communicator failed.
class nccl_error : public error {
 public:
  nccl_error(ncclResult_t native, std::string const& text)
      : error(errc::device_failed, text), native_(native) {}
  [[nodiscard]] ncclResult_t native() const noexcept { return native_; }

 private:
  ncclResult_t native_;
};

/// Does nothing for success, else throws.
/// @throws nccl_error (device_failed)
inline void check(ncclResult_t status, std::source_location at = std::source_location::current());

namespace detail {

[[noreturn]] inline void raise(ncclResult_t status, std::source_location const& at) {
  std::string text = zbpp::detail::joined("NCCL reports \"") + ncclGetErrorString(status) + "\" (" +
                     static_cast<int>(status) + ") at " + cuda::to_string(at);
  char const* const last = ncclGetLastError(nullptr);
  if (last != nullptr && *last != '\0') text.append(": ").append(last);
  throw nccl_error(status, text + "; set NCCL_DEBUG=INFO in the environment to see what NCCL does");
}

}  // namespace detail

inline void check(ncclResult_t status, std::source_location at) {
  if (status != ncclSuccess) detail::raise(status, at);
}

}  // namespace zbpp::nccl
