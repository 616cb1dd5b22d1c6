// SPDX-License-Identifier: Apache-2.0
//
// The calls of CUDA with which two processes get the slots of a channel, each of which may fail.
#pragma once

#include <array>

namespace zbpp::test {

/// Names them, for `cuda_model::fail_next`.
inline constexpr std::array calls_that_share_slots{
    "cudaHostRegister",
    "cudaHostGetDevicePointer",
    "cudaGetDriverEntryPointByVersion",
    "cuStreamWriteValue32",
    "cuStreamWaitValue32",
    "cudaMalloc",
    "cudaHostAlloc",
    "cudaIpcGetMemHandle",
    "cudaIpcOpenMemHandle",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cudaStreamSynchronize",
    "cudaStreamCreateWithPriority"};

}  // namespace zbpp::test
