// SPDX-License-Identifier: Apache-2.0
//
// Where the arenas of ranks on GPUs take their memory from, and memory of the host that a device
// can copy to, and write.
#pragma once

#include <zbpp/cuda/handles.hpp>
#include <zbpp/runtime/arena.hpp>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace zbpp::cuda {

/// @return a source of device memory for an arena, by cudaMalloc, aligned to 256 bytes
[[nodiscard]] inline memory_source device_memory(int device) noexcept {
  return {
      .take =
          [](std::size_t size, std::uintptr_t context) {
            device_guard const here(static_cast<int>(context));
            void* memory = nullptr;
            auto const status = cudaMalloc(&memory, size);
            if (status == cudaErrorMemoryAllocation) {
              cudaGetLastError();
              throw std::bad_alloc();
            }
            check(status);
            return memory;
          },
      .give_back =
          [](void* memory, std::size_t, std::uintptr_t) noexcept {
            // It knows the device by the address, and nobody is left to report an error to.
            cudaFree(memory);
          },
      .context = static_cast<std::uintptr_t>(device),
      .alignment = 256,
      .is_host = false};
}

/// Owns page-locked values of the host, which copies from a device can be enqueued to, and which
/// kernels can write.
template <class Value>
class pinned {
 public:
  pinned() noexcept = default;
  /// @throws cuda_error when there is no such memory left
  explicit pinned(std::size_t count) {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, count * sizeof(Value), cudaHostAllocMapped));
    values_ = static_cast<Value*>(memory);
  }
  pinned(pinned&& other) noexcept : values_(std::exchange(other.values_, nullptr)) {}
  pinned& operator=(pinned other) noexcept {
    std::swap(values_, other.values_);
    return *this;
  }
  ~pinned() {
    if (values_ != nullptr) cudaFreeHost(values_);
  }

  [[nodiscard]] Value* data() const noexcept { return values_; }
  /// @return its address for kernels on the current device
  /// @throws cuda_error
  [[nodiscard]] Value* on_device() const {
    void* mapped = nullptr;
    check(cudaHostGetDevicePointer(&mapped, values_, 0));
    return static_cast<Value*>(mapped);
  }

 private:
  Value* values_ = nullptr;
};

/// Owns values on the device that was current when it was made; they start undefined.
template <class Value>
class device_array {
 public:
  device_array() noexcept = default;
  /// @throws cuda_error when there is not that much memory left
  explicit device_array(std::size_t count) : size_(count) {
    if (count == 0) return;
    void* memory = nullptr;
    check(cudaMalloc(&memory, count * sizeof(Value)));
    first_ = static_cast<Value*>(memory);
  }
  device_array(device_array&& other) noexcept
      : first_(std::exchange(other.first_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  device_array& operator=(device_array other) noexcept {
    std::swap(first_, other.first_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~device_array() {
    if (first_ != nullptr) cudaFree(first_);  // nobody is left to hear of an error
  }

  /// @return the first value; null where there is none
  [[nodiscard]] Value* data() const noexcept { return first_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  Value* first_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace zbpp::cuda
