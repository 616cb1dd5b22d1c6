// SPDX-License-Identifier: Apache-2.0
//
// CUDA whose calls do nothing and succeed, linked instead of the runtime: what is left is what the
// host does by itself. Counts the calls that enqueue something.
#include "idle_cuda.hpp"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace {

// Of each thread, since ranks may be threads.
thread_local std::int64_t calls = 0;
thread_local bool is_capturing = false;

cudaError_t counted() {
  ++calls;
  return cudaSuccess;
}

template <class Handle>
cudaError_t make(Handle* made) {
  static char one = 0;
  *made = reinterpret_cast<Handle>(&one);
  return cudaSuccess;
}

cudaError_t give(int* to, int value) {
  *to = value;
  return cudaSuccess;
}

cudaError_t take_memory(void** memory, std::size_t size) {
  *memory = std::aligned_alloc(256, (size + 255) / 256 * 256);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

}  // namespace

std::int64_t idle_cuda::calls_so_far() { return calls; }

extern "C" {

cudaError_t cudaGetDevice(int* device) { return give(device, 0); }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return give(count, 1); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return give(value, 132); }
// Ranks are threads here, each of which asks once: each has a GPU of its own.
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int) {
  static std::atomic<unsigned> next{0};
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", next++ & 0xffU);
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return give(version, CUDART_VERSION); }
cudaError_t cudaGetDriverEntryPointByVersion(
    char const*, void**, unsigned, unsigned long long, cudaDriverEntryPointQueryResult*) {
  return cudaErrorSymbolNotFound;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return give(can, 0); }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceDisablePeerAccess(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  give(greatest, -1);
  return give(least, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned, int) { return make(made); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetFlags(cudaStream_t, unsigned* flags) {
  *flags = cudaStreamNonBlocking;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) { return give(priority, 0); }
cudaError_t cudaStreamGetDevice(cudaStream_t, int* device) { return give(device, 0); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return counted(); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) { return make(made); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return counted(); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t size) { return take_memory(memory, size); }
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t size, unsigned) {
  return take_memory(memory, size);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaHostGetDevicePointer(void** on_device, void* memory, unsigned) {
  *on_device = memory;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void*, void const*, std::size_t, cudaMemcpyKind, cudaStream_t) {
  return counted();
}
cudaError_t cudaMemcpyPeerAsync(void*, int, void const*, int, std::size_t, cudaStream_t) {
  return counted();
}
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) { return counted(); }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  is_capturing = true;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = is_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* made) {
  is_capturing = false;
  return make(made);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t, unsigned long long) {
  return make(made);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return counted(); }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
char const* cudaGetErrorName(cudaError_t) { return "cudaSuccess"; }
char const* cudaGetErrorString(cudaError_t) { return "no error"; }

}  // extern "C"
