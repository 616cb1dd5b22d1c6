// SPDX-License-Identifier: Apache-2.0
//
// The functions that the model defines, by number and name, and what kind of call each is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zbpp::cuda_model {

// LIGHT: neither; SYNC: the host waits for a device; MAKE: makes or frees something.
#define ZBPP_CUDA_MODEL_FUNCTIONS(LIGHT, SYNC, MAKE)                                               \
  LIGHT(launch)                                                                                    \
  LIGHT(cudaGetDevice)                                                                             \
  LIGHT(cudaSetDevice)                                                                             \
  LIGHT(cudaGetDeviceCount)                                                                        \
  LIGHT(cudaDeviceGetAttribute)                                                                    \
  LIGHT(cudaDeviceGetPCIBusId)                                                                     \
  LIGHT(cudaDeviceGetStreamPriorityRange)                                                          \
  LIGHT(cudaDeviceCanAccessPeer)                                                                   \
  LIGHT(cudaDeviceEnablePeerAccess)                                                                \
  LIGHT(cudaDeviceDisablePeerAccess)                                                               \
  SYNC(cudaDeviceSynchronize)                                                                      \
  LIGHT(cudaRuntimeGetVersion)                                                                     \
  LIGHT(cudaDriverGetVersion)                                                                      \
  LIGHT(cudaGetDriverEntryPointByVersion)                                                          \
  MAKE(cudaStreamCreateWithPriority)                                                               \
  MAKE(cudaStreamCreateWithFlags)                                                                  \
  MAKE(cudaStreamDestroy)                                                                          \
  SYNC(cudaStreamSynchronize)                                                                      \
  LIGHT(cudaStreamQuery)                                                                           \
  LIGHT(cudaStreamWaitEvent)                                                                       \
  LIGHT(cudaStreamGetFlags)                                                                        \
  LIGHT(cudaStreamGetPriority)                                                                     \
  LIGHT(cudaStreamGetDevice)                                                                       \
  MAKE(cudaEventCreateWithFlags)                                                                   \
  MAKE(cudaEventDestroy)                                                                           \
  LIGHT(cudaEventRecord)                                                                           \
  LIGHT(cudaEventQuery)                                                                            \
  SYNC(cudaEventSynchronize)                                                                       \
  LIGHT(cudaEventElapsedTime)                                                                      \
  MAKE(cudaMalloc)                                                                                 \
  MAKE(cudaFree)                                                                                   \
  MAKE(cudaHostAlloc)                                                                              \
  MAKE(cudaFreeHost)                                                                               \
  LIGHT(cudaHostGetDevicePointer)                                                                  \
  LIGHT(cudaMemcpyAsync)                                                                           \
  LIGHT(cudaMemcpyPeerAsync)                                                                       \
  LIGHT(cudaMemsetAsync)                                                                           \
  LIGHT(cudaLaunchHostFunc)                                                                        \
  LIGHT(cudaGetLastError)                                                                          \
  LIGHT(cudaPeekAtLastError)                                                                       \
  LIGHT(cudaStreamBeginCapture)                                                                    \
  MAKE(cudaStreamEndCapture)                                                                       \
  LIGHT(cudaStreamIsCapturing)                                                                     \
  MAKE(cudaGraphInstantiate)                                                                       \
  LIGHT(cudaGraphLaunch)                                                                           \
  MAKE(cudaGraphExecDestroy)                                                                       \
  MAKE(cudaGraphDestroy)                                                                           \
  LIGHT(cuDeviceGet)                                                                               \
  LIGHT(cuDeviceGetDevResource)                                                                    \
  LIGHT(cuDevSmResourceSplitByCount)                                                               \
  LIGHT(cuDevResourceGenerateDesc)                                                                 \
  MAKE(cuGreenCtxCreate)                                                                           \
  MAKE(cuGreenCtxStreamCreate)                                                                     \
  MAKE(cuGreenCtxDestroy)                                                                          \
  LIGHT(cuStreamGetGreenCtx)                                                                       \
  LIGHT(ncclGetVersion)                                                                            \
  LIGHT(ncclGetUniqueId)                                                                           \
  MAKE(ncclCommInitRankConfig)                                                                     \
  LIGHT(ncclCommGetAsyncError)                                                                     \
  SYNC(ncclCommFinalize)                                                                           \
  MAKE(ncclCommDestroy)                                                                            \
  MAKE(ncclCommAbort)                                                                              \
  SYNC(ncclCommRevoke)                                                                             \
  LIGHT(ncclCommCount)                                                                             \
  LIGHT(ncclCommUserRank)                                                                          \
  LIGHT(ncclCommCuDevice)                                                                          \
  LIGHT(ncclGroupStart)                                                                            \
  LIGHT(ncclGroupEnd)                                                                              \
  LIGHT(ncclAllReduce)                                                                             \
  LIGHT(ncclSend)                                                                                  \
  LIGHT(ncclRecv)

enum class function : std::uint8_t {
#define ZBPP_CUDA_MODEL_ENUMERATOR(name) name,
  ZBPP_CUDA_MODEL_FUNCTIONS(
      ZBPP_CUDA_MODEL_ENUMERATOR, ZBPP_CUDA_MODEL_ENUMERATOR, ZBPP_CUDA_MODEL_ENUMERATOR)
#undef ZBPP_CUDA_MODEL_ENUMERATOR
      count_
};

enum class call_kind : std::uint8_t { light, synchronises, makes };

struct function_fact {
  std::string_view name;
  call_kind kind;
};

inline constexpr function_fact function_facts[] = {
#define ZBPP_CUDA_MODEL_LIGHT(name) {#name, call_kind::light},
#define ZBPP_CUDA_MODEL_SYNC(name) {#name, call_kind::synchronises},
#define ZBPP_CUDA_MODEL_MAKE(name) {#name, call_kind::makes},
    ZBPP_CUDA_MODEL_FUNCTIONS(ZBPP_CUDA_MODEL_LIGHT, ZBPP_CUDA_MODEL_SYNC, ZBPP_CUDA_MODEL_MAKE)
#undef ZBPP_CUDA_MODEL_LIGHT
#undef ZBPP_CUDA_MODEL_SYNC
#undef ZBPP_CUDA_MODEL_MAKE
};

inline constexpr std::size_t function_count = static_cast<std::size_t>(function::count_);

inline constexpr function_fact const& fact_of(function f) {
  return function_facts[static_cast<std::size_t>(f)];
}

}  // namespace zbpp::cuda_model
