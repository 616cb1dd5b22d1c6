// SPDX-License-Identifier: Apache-2.0
//
// Fixed memory for the one operation that a place of the code has under way, so that starting it
// allocates nothing, on whichever thread.
#pragma once

#include <array>
#include <cstddef>
#include <new>

namespace zbpp::asio::detail {

/// Gives out one piece at a time. Whatever does not fit, or comes second, is from the heap.
class handler_memory {
 public:
  handler_memory() = default;
  handler_memory(handler_memory const&) = delete;
  handler_memory& operator=(handler_memory const&) = delete;

  /// @throws std::bad_alloc
  [[nodiscard]] void* allocate(std::size_t size) {
    if (is_used_ || size > storage_.size()) return ::operator new(size);
    is_used_ = true;
    return storage_.data();
  }
  void deallocate(void* memory) noexcept {
    if (memory == storage_.data())
      is_used_ = false;
    else
      ::operator delete(memory);
  }

 private:
  // An operation of Asio for a small handler needs a third of this, one that reads or writes a
  // whole frame two thirds.
  alignas(std::max_align_t) std::array<std::byte, 480> storage_;
  bool is_used_ = false;
};

/// Lets Asio take the memory of an operation from a `handler_memory`, which has to outlive it.
template <class Value>
class handler_allocator {
 public:
  using value_type = Value;

  explicit handler_allocator(handler_memory& memory) noexcept : memory_(&memory) {}
  template <class Other>
  handler_allocator(handler_allocator<Other> const& other) noexcept : memory_(other.memory_) {}

  [[nodiscard]] Value* allocate(std::size_t count) {
    static_assert(alignof(Value) <= alignof(std::max_align_t));
    return static_cast<Value*>(memory_->allocate(count * sizeof(Value)));
  }
  void deallocate(Value* memory, std::size_t) noexcept { memory_->deallocate(memory); }

  friend bool operator==(handler_allocator const&, handler_allocator const&) = default;

 private:
  template <class>
  friend class handler_allocator;

  handler_memory* memory_;
};

}  // namespace zbpp::asio::detail
