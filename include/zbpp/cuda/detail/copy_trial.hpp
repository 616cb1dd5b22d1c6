// SPDX-License-Identifier: Apache-2.0
//
// A random pattern, to see whether copies arrive. CUDA reports success for copies between
// GPUs that an IOMMU drops or garbles, so only what has arrived tells.
#pragma once

#include <zbpp/cuda/error.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>

namespace zbpp::cuda::detail {

/// Bytes to try copies with: more than the 64 KiB up to which CUDA may copy in another way.
inline constexpr std::size_t trial_size = std::size_t{1} << 17;

/// Enqueues work and blocks until it is done, also where either fails: what it uses may go then.
/// @throws what `enqueue` throws; cuda_error
template <class Enqueue>
void run_to_end(stream_ref on, Enqueue const& enqueue) {
  try {
    enqueue();
    on.synchronize();
  } catch (...) {
    cudaStreamSynchronize(on);
    throw;
  }
}

/// A random pattern of `trial_size` bytes: pieces, each of one byte.
class copy_pattern {
 public:
  copy_pattern() {
    std::random_device random;
    for (auto& value : values_) value = static_cast<unsigned char>(random() & 0xffU);
  }

  /// Enqueues writing it to memory of the device of a stream. @throws cuda_error
  void write(std::byte* to, stream_ref on) const {
    for (std::size_t i = 0; i < pieces; ++i)
      check(cudaMemsetAsync(to + i * piece, values_[i], piece, on));
  }
  /// @return whether memory of the device of a stream holds it, after what was enqueued; blocks
  /// @throws cuda_error
  [[nodiscard]] bool is_in(std::byte const* memory, stream_ref on) const {
    pinned<unsigned char> const found(trial_size);
    run_to_end(on, [&] {
      check(cudaMemcpyAsync(found.data(), memory, trial_size, cudaMemcpyDeviceToHost, on));
    });
    std::size_t at = 0;
    return std::all_of(found.data(), found.data() + trial_size, [&](unsigned char each) {
      return each == values_[at++ / piece];
    });
  }

 private:
  static constexpr std::size_t pieces = 64;
  static constexpr std::size_t piece = trial_size / pieces;

  std::array<unsigned char, pieces> values_{};
};

}  // namespace zbpp::cuda::detail
