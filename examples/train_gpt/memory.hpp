// SPDX-License-Identifier: Apache-2.0
//
// Where a model's passes put what they keep. A pass asks a *memory* for tensors and says nothing of
// how they are made: the sequential trainer gives it the heap, a pipeline stage its rank's arena.
#pragma once

#include "config.hpp"

#include <concepts>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace gpt {

/// Hands out arrays of floats as handles that free them; elements start undefined. `allocate_edge`
/// is for what goes to another stage.
template <class Memory>
concept memory = requires(Memory& m, typename Memory::tensor t, index count) {
  { m.allocate(count) } -> std::same_as<typename Memory::tensor>;
  { m.allocate_edge(count) } -> std::same_as<typename Memory::tensor>;
  { t.data() } -> std::same_as<float*>;
  t = typename Memory::tensor{};
};

/// Allocates on cache lines and leaves elements undefined.
template <class Value>
struct aligned_allocator {
  using value_type = Value;
  static constexpr std::align_val_t alignment{64};

  aligned_allocator() = default;
  template <class Other>
  explicit aligned_allocator(aligned_allocator<Other> const&) noexcept {}

  /// @return memory for `count` values
  [[nodiscard]] Value* allocate(std::size_t count) {
    return static_cast<Value*>(::operator new(count * sizeof(Value), alignment));
  }
  /// Frees what `allocate` returned.
  void deallocate(Value* values, std::size_t) noexcept { ::operator delete(values, alignment); }
  /// Makes a value without giving it one.
  void construct(Value* value) noexcept { ::new (static_cast<void*>(value)) Value; }
  /// Makes a value.
  template <class From>
  void construct(Value* value, From const& from) noexcept {
    ::new (static_cast<void*>(value)) Value(from);
  }

  friend bool operator==(aligned_allocator const&, aligned_allocator const&) { return true; }
};

/// Is an array of floats on cache lines.
using floats = std::vector<float, aligned_allocator<float>>;

/// Is the memory of a model that runs alone: the heap.
struct heap_memory {
  /// Owns an array. A vector would visit each element that it makes and destroys.
  class tensor {
   public:
    tensor() = default;
    explicit tensor(index count)
        : first_(aligned_allocator<float>().allocate(static_cast<std::size_t>(count))) {}

    [[nodiscard]] float* data() const { return first_.get(); }

   private:
    struct deleter {
      void operator()(float* first) const { aligned_allocator<float>().deallocate(first, 0); }
    };
    std::unique_ptr<float, deleter> first_;
  };

  /// @return an array of `count` floats
  [[nodiscard]] static tensor allocate(index count) { return tensor(count); }
  /// @return an array of `count` floats; nothing is sent anywhere
  [[nodiscard]] static tensor allocate_edge(index count) { return allocate(count); }
};

/// Cuts one allocation into aligned pieces, in the order of the calls; without one it only counts.
class carver {
 public:
  /// Counts, and hands out null.
  carver() = default;
  /// Cuts the array that starts at `first`.
  explicit carver(float* first) : first_(first) {}

  /// @return the next `count` floats
  [[nodiscard]] float* take(index count) {
    auto const at = used_;
    constexpr index line = 16;
    used_ += (count + line - 1) / line * line;
    return first_ == nullptr ? nullptr : first_ + at;
  }
  /// @return floats taken so far
  [[nodiscard]] index used() const { return used_; }

 private:
  float* first_ = nullptr;
  index used_ = 0;
};

}  // namespace gpt
