// SPDX-License-Identifier: Apache-2.0
//
// The blocks that messages arrive in. The engine supplies them, the I/O thread uses them up, and
// a ring with one end for each goes between.
#pragma once

#include <zbpp/runtime/arena.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace zbpp::asio::detail {

/// Holds the bytes of one message that arrives: memory of the arena, which the message may keep,
/// where its size was declared; else memory of its own that grows.
class receive_buffer {
 public:
  receive_buffer() = default;
  explicit receive_buffer(buffer block) noexcept : block_(std::move(block)) {}

  [[nodiscard]] std::byte* data() const noexcept { return block_ ? block_.data() : area_.get(); }
  [[nodiscard]] bool is_of_arena() const noexcept { return static_cast<bool>(block_); }
  /// Makes room for a message, unless the block is of the arena.
  /// @return false when there is no memory
  [[nodiscard]] bool grow(std::uint64_t size) noexcept {
    if (block_ || size <= capacity_) return true;
    auto const wanted = std::max<std::size_t>(std::bit_ceil(static_cast<std::size_t>(size)), 256);
    area_.reset();  // before, for its bytes are not needed
    area_.reset(new (std::nothrow) std::byte[wanted]);
    capacity_ = area_ ? wanted : 0;
    return area_ != nullptr;
  }
  /// @return the block of the arena, in whose place `other` is from now on
  [[nodiscard]] buffer exchange(buffer other) noexcept {
    return std::exchange(block_, std::move(other));
  }

 private:
  buffer block_;
  std::unique_ptr<std::byte[]> area_;
  std::size_t capacity_ = 0;
};

/// Passes blocks from the engine to the I/O thread. The two agree through a `credit_given` on how
/// many there are; at most as many as the ring is long are in it at a time.
class receive_buffer_ring {
 public:
  explicit receive_buffer_ring(std::size_t length) : ring_(std::bit_ceil(length)) {}

  /// Adds a block; for the engine, before it counts it.
  void push(receive_buffer block) noexcept {
    ring_[pushed_++ & (ring_.size() - 1)] = std::move(block);
  }
  /// Gives the oldest block, which has to be there; for the I/O thread.
  [[nodiscard]] receive_buffer pop() noexcept {
    return std::move(ring_[popped_++ & (ring_.size() - 1)]);
  }

 private:
  std::vector<receive_buffer> ring_;
  std::size_t pushed_ = 0;
  alignas(64) std::size_t popped_ = 0;
};

}  // namespace zbpp::asio::detail
