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

/// Owns values on the device that was current when it was made; they start undefined.
template <class Value>
class device_array {
 public:
  device_array() = default;
  /// @throws zbpp::cuda::cuda_error when there is not that much memory left
  explicit device_array(std::size_t count) : count_(count) {
    void* memory = nullptr;
    zbpp::cuda::check(cudaMalloc(&memory, count * sizeof(Value)));
    first_ = static_cast<Value*>(memory);
  }
  device_array(device_array&& other) noexcept
      : first_(std::exchange(other.first_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  device_array& operator=(device_array other) noexcept {
    std::swap(first_, other.first_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~device_array() {
    if (first_ != nullptr) cudaFree(first_);  // nobody is left to hear of an error
  }

  /// @return the first value
  [[nodiscard]] Value* data() const { return first_; }
  /// @return how many there are
  [[nodiscard]] std::size_t size() const { return count_; }

  /// Copies values to the array and waits until they are there.
  /// @param values  as many as the array has
  /// @throws zbpp::cuda::cuda_error
  void upload(zbpp::cuda::stream_ref on, std::span<Value const> values) const {
    zbpp::cuda::pinned<Value> const staged(count_);
    std::copy(values.begin(), values.end(), staged.data());
    note_host_writes(staged.data(), count_ * sizeof(Value));
    zbpp::cuda::check(
        cudaMemcpyAsync(first_, staged.data(), count_ * sizeof(Value), cudaMemcpyHostToDevice, on));
    on.synchronize();
  }
  /// Enqueues a fill with zeros.
  /// @throws zbpp::cuda::cuda_error
  void clear(cudaStream_t on) const {
    zbpp::cuda::check(cudaMemsetAsync(first_, 0, count_ * sizeof(Value), on));
  }
  /// Copies the values once the stream is through with what it has.
  /// @throws zbpp::cuda::cuda_error
  [[nodiscard]] std::vector<Value> download(zbpp::cuda::stream_ref on) const {
    zbpp::cuda::pinned<Value> const landing(count_);
    zbpp::cuda::check(cudaMemcpyAsync(
        landing.data(), first_, count_ * sizeof(Value), cudaMemcpyDeviceToHost, on));
    on.synchronize();
    return std::vector<Value>(landing.data(), landing.data() + count_);
  }

 private:
  Value* first_ = nullptr;
  std::size_t count_ = 0;
};

/// Cuts memory into pieces aligned as cudaMalloc's, in the order of the calls; without memory it
/// only counts.
class pieces {
 public:
  /// Cuts what starts at `first`; null counts.
  explicit pieces(std::byte* first = nullptr) : first_(first) {}

  /// @return the next `count` values
  template <class Value>
  [[nodiscard]] Value* take(index count) {
    constexpr std::size_t line = 256;
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
