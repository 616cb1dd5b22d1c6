// SPDX-License-Identifier: Apache-2.0
//
// The way into the model that every C function takes: lock, count, fail or skip if a test said so,
// do it, run some of what is ready.
#pragma once

#include "machine.hpp"

#include <exception>
#include <new>
#include <type_traits>

namespace zbpp::cuda_model {

/// What the way in found: go on, or return this.
struct admission {
  bool go_on = true;
  int result = 0;
};

/// Counts the call and looks for failures and skips that a test has asked for.
admission admit(machine& in, function call);

/// Notes a call from inside a host function or a kernel, where CUDA allows none.
void refuse_callback(machine& in, host_state& self, function call);

/// True if a sticky error of the current device is what this function returns.
bool sees_sticky(function call);

/// Errors after which CUDA cannot go on.
bool is_sticky(int error);

/// The result is a report on earlier errors, not an error of the call.
struct error_report {};
struct own_error {};

/// Enters a function of CUDA.
template <class Body, class Result = own_error>
cudaError_t enter(function call, Body&& body, Result = {}) noexcept {
  machine& in = machine::the();
  host_state& self = in.host();
  if (self.inside != host_state::callback::none) {
    refuse_callback(in, self, call);
    return cudaErrorNotPermitted;
  }
  std::lock_guard lock(in.mutex());
  auto const end = [&self](int error) {
    if (error != cudaSuccess && error != cudaErrorNotReady)
      self.last_error = static_cast<cudaError_t>(error);
    return static_cast<cudaError_t>(error);
  };
  admission const admitted = admit(in, call);
  if (!admitted.go_on) {
    if (is_sticky(admitted.result))
      in.poison(self.device, static_cast<cudaError_t>(admitted.result));
    return end(admitted.result);
  }
  cudaError_t error = cudaErrorMemoryAllocation;
  try {
    error = body(in, self);
  } catch (std::bad_alloc const&) {
  }
  cudaError_t const sticky = in.sticky_[static_cast<std::size_t>(self.device)];
  if (sticky != cudaSuccess && sees_sticky(call))
    error = sticky;  // what destroys has done so; nothing else can have
  in.run_some();
  return std::is_same_v<Result, error_report> ? error : end(error);
}

/// Enters a function of NCCL.
template <class Body>
ncclResult_t enter_nccl(function call, Body&& body) noexcept {
  machine& in = machine::the();
  host_state& self = in.host();
  if (self.inside != host_state::callback::none) {
    refuse_callback(in, self, call);
    return ncclInvalidUsage;
  }
  std::lock_guard lock(in.mutex());
  admission const admitted = admit(in, call);
  if (!admitted.go_on) return static_cast<ncclResult_t>(admitted.result);
  ncclResult_t result = ncclSystemError;
  try {
    result = body(in, self);
  } catch (std::bad_alloc const&) {
  }
  in.run_some();
  return result;
}

/// The access of the whole range, for what is checked at once.
inline bool locate(
    machine& in,
    char const* caller,
    void const* data,
    std::size_t bytes,
    bool write,
    byte_access& found) {
  std::string const wrong = in.memory_.find(data, bytes, write, found);
  if (!wrong.empty()) in.fault("memory: " + std::string(caller) + " names memory that " + wrong);
  return wrong.empty();
}

}  // namespace zbpp::cuda_model
