// SPDX-License-Identifier: Apache-2.0
//
// How an arena grows, and how it puts free pieces in order.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/detail/arena_core.hpp>
#include <zbpp/runtime/detail/poison.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

namespace zbpp::detail {

ZBPP_INLINE arena_core::~arena_core() {
  for (auto const& c : chunks_) {
    if (source_.is_host) unpoison(c.begin, c.size);
    source_.give_back(c.begin, c.size, source_.context);
  }
}

// Rounding adds less than an eighth, but for pieces of up to sixteen times the alignment.
ZBPP_INLINE void arena_core::reserve(std::size_t size) {
  if (size > most / 2) throw std::bad_alloc();
  if (size > 0) add_chunk(size + size / 8 + smallest_chunk);
}

ZBPP_INLINE void arena_core::sort_free() noexcept {
  if (source_.is_host) return;
  free_.fill(nullptr);
  for (auto some = blocks_.size(); some-- > 0;) {
    auto const unused = some + 1 == blocks_.size() ? blocks_left_ : 0;
    for (auto i = blocks_at_once - unused; i-- > 0;) {
      auto& piece = blocks_[some][i];
      if (piece.references != 0) continue;
      piece.next_free = free_[piece.size_class];
      free_[piece.size_class] = &piece;
    }
  }
}

ZBPP_INLINE block* arena_core::place(
    object_type const& type, void* from, bytes size, purpose what) {
  require(size >= 0, "an object counts as a number of bytes from 0");
  require(
      source_.is_host,
      "on a GPU an edge carries memory and no objects; write to memory of allocate_edge instead");
  auto* found = find(type.size);
  unpoison(found->data, type.size);
  type.move(found->data, from);
  found->object = &type;
  hand_out(found, static_cast<std::size_t>(size), what);
  return found;
}

ZBPP_INLINE block* arena_core::carve(std::size_t size) {
  if (size > left_) {
    add_chunk(std::max({size, smallest_chunk, static_cast<std::size_t>(usage_.reserved) / 2}));
    ++usage_.growths;
  }
  auto& piece = next_block();
  piece.owner = this;
  piece.data = next_;
  piece.capacity = size;
  next_ += size;
  left_ -= size;
  return &piece;
}

ZBPP_INLINE block& arena_core::next_block() {
  if (blocks_left_ == 0) {
    blocks_.push_back(std::make_unique<block[]>(blocks_at_once));
    blocks_left_ = blocks_at_once;
  }
  return blocks_.back()[blocks_at_once - blocks_left_--];
}

ZBPP_INLINE void arena_core::add_chunk(std::size_t size) {
  chunks_.reserve(chunks_.size() + 1);
  auto* begin = static_cast<std::byte*>(source_.take(size, source_.context));
  chunks_.push_back({begin, size});
  usage_.reserved += static_cast<bytes>(size);
  next_ = begin;
  left_ = size;
  if (source_.is_host) poison(begin, size);
}

}  // namespace zbpp::detail
