// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the programs in this folder. Each function launches one and returns what the
// launch returned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace zbpp::bench {

/// Multiplies and adds in registers on `blocks` blocks of 256 threads, `rounds` times; writes to
/// `sink` only what never happens, so that no part of it is left out.
cudaError_t burn(cudaStream_t on, int blocks, int rounds, float* sink);

/// The same, and each block writes down which multiprocessor it ran on.
cudaError_t burn_and_note(cudaStream_t on, int blocks, int rounds, unsigned* multiprocessor);

/// Fills `count` values of bf16 with numbers between -1 and 1 that look random.
cudaError_t fill_bf16(cudaStream_t on, void* values, std::size_t count, std::uint32_t seed);

/// to[i] = factor * from[i] + addend; from[i] is i where `from` is null.
cudaError_t scale(
    cudaStream_t on, float* to, float const* from, float factor, float addend, int count);

/// to[i] = a[i] * b[i], or adds that, each operation rounded; `to` may be one of them.
cudaError_t multiply(
    cudaStream_t on, float* to, float const* a, float const* b, bool adds, int count);

/// One after the other: *to = *to / 2 + x[i] * g[i], each operation rounded.
cudaError_t fold(cudaStream_t on, float* to, float const* x, float const* g, int count);

/// Writes where nothing is.
cudaError_t fault(cudaStream_t on);

}  // namespace zbpp::bench
