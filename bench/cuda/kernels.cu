// SPDX-License-Identifier: Apache-2.0
#include "kernel_values.hpp"
#include "kernels.hpp"

#include <cuda_bf16.h>

namespace zbpp::bench {
namespace {

constexpr int threads = 256;

__device__ float chain(int rounds) {
  float a = static_cast<float>(threadIdx.x);
  float b = a + 1;
  float c = a + 2;
  float d = a + 3;
  for (int i = 0; i < rounds; ++i) {
    a = fmaf(a, 0.999F, 0.5F);
    b = fmaf(b, 0.998F, 0.5F);
    c = fmaf(c, 0.997F, 0.5F);
    d = fmaf(d, 0.996F, 0.5F);
  }
  return a + b + c + d;
}

__global__ void burn_kernel(int rounds, float* sink) {
  float const result = chain(rounds);
  if (result < 0) *sink = result;
}

__global__ void burn_and_note_kernel(int rounds, unsigned* multiprocessor) {
  float const result = chain(rounds);
  unsigned id = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  if (threadIdx.x == 0) multiprocessor[blockIdx.x] = result < 0 ? ~0U : id;
}

__global__ void fill_bf16_kernel(__nv_bfloat16* values, std::size_t count, std::uint32_t seed) {
  auto const stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (auto i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride)
    values[i] = __float2bfloat16(filled(i, seed));
}

__global__ void scale_kernel(float* to, float const* from, float factor, float addend, int count) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) to[i] = scaled(from, factor, addend, i);
}

__global__ void multiply_kernel(float* to, float const* a, float const* b, bool adds, int count) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) to[i] = multiplied(to, a, b, adds, i);
}

__global__ void fold_kernel(float* to, float const* x, float const* g, int count) {
  *to = folded(*to, x, g, count);
}

__global__ void fault_kernel(int volatile* nowhere) { *nowhere = 1; }

}  // namespace

cudaError_t burn(cudaStream_t on, int blocks, int rounds, float* sink) {
  burn_kernel<<<blocks, threads, 0, on>>>(rounds, sink);
  return cudaGetLastError();
}

cudaError_t burn_and_note(cudaStream_t on, int blocks, int rounds, unsigned* multiprocessor) {
  burn_and_note_kernel<<<blocks, threads, 0, on>>>(rounds, multiprocessor);
  return cudaGetLastError();
}

cudaError_t fill_bf16(cudaStream_t on, void* values, std::size_t count, std::uint32_t seed) {
  fill_bf16_kernel<<<1024, threads, 0, on>>>(static_cast<__nv_bfloat16*>(values), count, seed);
  return cudaGetLastError();
}

cudaError_t scale(
    cudaStream_t on, float* to, float const* from, float factor, float addend, int count) {
  scale_kernel<<<(count + threads - 1) / threads, threads, 0, on>>>(
      to, from, factor, addend, count);
  return cudaGetLastError();
}

cudaError_t multiply(
    cudaStream_t on, float* to, float const* a, float const* b, bool adds, int count) {
  multiply_kernel<<<(count + threads - 1) / threads, threads, 0, on>>>(to, a, b, adds, count);
  return cudaGetLastError();
}

cudaError_t fold(cudaStream_t on, float* to, float const* x, float const* g, int count) {
  fold_kernel<<<1, 1, 0, on>>>(to, x, g, count);
  return cudaGetLastError();
}

cudaError_t fault(cudaStream_t on) {
  fault_kernel<<<1, 1, 0, on>>>(nullptr);
  return cudaGetLastError();
}

}  // namespace zbpp::bench
