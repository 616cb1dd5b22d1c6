// SPDX-License-Identifier: Apache-2.0
//
// Coroutine frames without the heap: freed frames are kept by size and used again. Each engine has
// its own pool; a frame goes back to the pool it came from, whoever destroys it.
#pragma once

#include <zbpp/runtime/detail/poison.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace zbpp {

/// Keeps freed coroutine frames for reuse, in lists by size. Frames must not outlive their pool.
class frame_pool {
 public:
  frame_pool() = default;
  frame_pool(frame_pool const&) = delete;
  frame_pool& operator=(frame_pool const&) = delete;
  ~frame_pool() {
    for (auto*& list : free_)
      while (list != nullptr) {
        auto* const frame = std::exchange(list, list->next);
        detail::unpoison(frame + 1, frame->size_class * step);
        ::operator delete(frame);
      }
  }

  /// Makes a pool the one that new frames of this thread come from, for a scope.
  class [[nodiscard]] scope {
   public:
    explicit scope(frame_pool& pool) noexcept : previous_(std::exchange(current_, &pool)) {}
    scope(scope const&) = delete;
    scope& operator=(scope const&) = delete;
    ~scope() { current_ = previous_; }

   private:
    frame_pool* previous_;
  };

  /// Gives a frame from the pool in scope, or from the heap when there is none.
  /// @throws std::bad_alloc
  [[nodiscard]] static void* allocate(std::size_t size) {
    auto const size_class = (size + step - 1) / step;
    auto* pool = size_class < classes ? current_ : nullptr;
    header* frame = nullptr;
    if (pool != nullptr && pool->free_[size_class] != nullptr) {
      frame = pool->free_[size_class];
      pool->free_[size_class] = frame->next;
      detail::unpoison(frame + 1, size_class * step);
    } else {
      auto const room = size_class * step + sizeof(header);
      frame = static_cast<header*>(::operator new(room));
      if (pool != nullptr) ++pool->made_;
    }
    ::new (frame) header{.owner = pool, .size_class = size_class};
    return frame + 1;
  }

  /// Takes a frame back into its pool.
  static void release(void* data) noexcept {
    auto* frame = static_cast<header*>(data) - 1;
    auto* pool = frame->owner;
    if (pool == nullptr) {
      ::operator delete(frame);
      return;
    }
    auto& list = pool->free_[frame->size_class];
    frame->next = list;
    list = frame;
    detail::poison(frame + 1, frame->size_class * step);
  }

  [[nodiscard]] std::int64_t made() const noexcept { return made_; }

 private:
  static constexpr std::size_t step = 64;
  static constexpr std::size_t classes = 129;  // frames up to 8 KiB

  struct alignas(16) header {
    frame_pool* owner = nullptr;
    std::size_t size_class = 0;
    header* next = nullptr;
  };

  static inline thread_local frame_pool* current_ = nullptr;

  std::array<header*, classes> free_{};
  std::int64_t made_ = 0;
};

}  // namespace zbpp
