// SPDX-License-Identifier: Apache-2.0
//
// Memory of a device that a stage holds as long as it lives, and pieces cut out of memory.
#pragma once

#include "train_gpt/config.hpp"
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>

#ifdef ZBPP_CUDA_MODEL
#include <support/cuda_model/cuda_model.hpp>
#endif

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace gpt::cuda {

/// Tells the model of CUDA that the host wrote to memory that a device reads.
inline void note_host_writes([[maybe_unused]] void* first, [[maybe_unused]] std::size_t bytes) {
#ifdef ZBPP_CUDA_MODEL
  zbpp::cuda_model::host_writes(first, bytes);
#endif
}

/// Owns values on a device, and copies them to and fro.
template <class Value>
class device_array : public zbpp::cuda::device_array<Value> {
  using base = zbpp::cuda::device_array<Value>;

 public:
  using base::base;
  using base::data;
  using base::size;

  /// Copies values to the array and waits until they are there.
  /// @param values  as many as the array has
  /// @throws zbpp::cuda::cuda_error
  void upload(zbpp::cuda::stream_ref on, std::span<Value const> values) const {
    zbpp::cuda::pinned<Value> const staged(size());
    std::copy(values.begin(), values.end(), staged.data());
    note_host_writes(staged.data(), size() * sizeof(Value));
    zbpp::cuda::check(
        cudaMemcpyAsync(data(), staged.data(), size() * sizeof(Value), cudaMemcpyHostToDevice, on));
    on.synchronize();
  }
  /// Enqueues a fill with zeros.
  /// @throws zbpp::cuda::cuda_error
  void clear(cudaStream_t on) const {
    zbpp::cuda::check(cudaMemsetAsync(data(), 0, size() * sizeof(Value), on));
  }
  /// Copies the values once the stream is through with what it has.
  /// @throws zbpp::cuda::cuda_error
  [[nodiscard]] std::vector<Value> download(zbpp::cuda::stream_ref on) const {
    zbpp::cuda::pinned<Value> const landing(size());
    zbpp::cuda::check(cudaMemcpyAsync(
        landing.data(), data(), size() * sizeof(Value), cudaMemcpyDeviceToHost, on));
    on.synchronize();
    return std::vector<Value>(landing.data(), landing.data() + size());
  }
};

/// Cuts memory into pieces aligned as cudaMalloc's, in the order of the calls; without memory it
/// only counts.
class pieces {
 public:
  static constexpr std::size_t line = 256;  ///< what a piece is aligned to

  /// Cuts what starts at `first`; null counts.
  explicit pieces(std::byte* first = nullptr) : first_(first) {}

  /// @return the next `count` values
  template <class Value>
  [[nodiscard]] Value* take(index count) {
    auto const at = used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(Value) + line - 1) / line * line;
    return first_ == nullptr ? nullptr : reinterpret_cast<Value*>(first_ + at);
  }
  /// @return bytes taken so far
  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  std::byte* first_;
  std::size_t used_ = 0;
};

}  // namespace gpt::cuda
