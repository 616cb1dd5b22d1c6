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
#include <utility>

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
  if (size > 0) add_chunk(reserved_for(size));
}

ZBPP_INLINE void arena_core::sort_free() noexcept {
  if (source_.is_host) return;
  free_.fill(nullptr);
  for (auto some = blocks_.size(); some-- > 0;) {
    auto const unused = some + 1 == blocks_.size() ? blocks_left_ : 0;
    for (auto i = blocks_at_once - unused; i-- > 0;) {
      auto& piece = blocks_[some][i];
      if (piece.references != 0 || piece.loans != 0 || piece.is_borrowed) continue;
      piece.next_free = free_[piece.size_class];
      free_[piece.size_class] = &piece;
    }
  }
}

// Mixes the addresses, so that two pieces do not pass for two others.
ZBPP_INLINE std::uintptr_t arena_core::mark_of_pieces() const noexcept {
  std::uintptr_t mark = 0;
  for (std::size_t some = 0; some < blocks_.size(); ++some) {
    auto const unused = some + 1 == blocks_.size() ? blocks_left_ : 0;
    for (std::size_t i = 0; i < blocks_at_once - unused; ++i) {
      auto const& piece = blocks_[some][i];
      if (piece.references == 0) continue;
      auto const at = reinterpret_cast<std::uintptr_t>(piece.data);
      mark += (at ^ (at >> 15)) * 0x9e3779b1U * (at | 1);
    }
  }
  return mark;
}

ZBPP_INLINE block* arena_core::place(object_type const& type, void* from, bytes size, purpose use) {
  require(size >= 0, "an object counts as a number of bytes from 0");
  require(
      source_.is_host,
      "on a GPU an edge carries memory and no objects; write to memory of allocate_edge instead");
  auto* found = find(type.size);
  unpoison(found->data, type.size);
  type.move(found->data, from);
  found->object = &type;
  hand_out(found, static_cast<std::size_t>(size), use);
  return found;
}

// A list begins with what the first pass of the pair has taken and let go of.
ZBPP_INLINE void arena_core::begin_half() noexcept {
  if (half_ != 0)
    for (auto& list : free_)
      while (list != nullptr && list->half == half_) {
        auto* const piece = std::exchange(list, list->next_free);
        if (source_.is_host) unpoison(piece->data, piece->size);
        hand_out(piece, piece->size, piece->use);
        withhold(piece);
      }
  if (++halves_ == 0) ++halves_;
  half_ = halves_;
}

ZBPP_INLINE void arena_core::free_withheld() noexcept {
  half_ = 0;
  for (auto* list = std::exchange(withheld_, nullptr); list != nullptr;) {
    auto* const piece = std::exchange(list, list->next_free);
    piece->references = 0;
    release(piece);
  }
}

ZBPP_INLINE block* arena_core::borrow(block* from) {
  auto* piece = unused_ != nullptr ? unused_ : &next_block();
  if (piece == unused_) unused_ = piece->next_free;
  piece->owner = this;
  piece->data = from->data;
  piece->lender = from;
  piece->is_borrowed = true;
  ++from->loans;
  hand_out(piece, from->size, purpose::borrowed);
  return piece;
}

ZBPP_INLINE void arena_core::give_back(block* piece, bool is_all_done) noexcept {
  auto* const lender = piece->lender;
  auto& borrower = *piece->owner;
  piece->next_free = borrower.unused_;
  borrower.unused_ = piece;
  borrower.drop();
  if (--lender->loans != 0 || lender->references != 0) return;
  if (is_all_done && lender->is_borrowed)
    give_back(lender, true);
  else
    lender->owner->end(lender);
}

ZBPP_INLINE void arena_core::end_borrowed(block* piece) noexcept {
  if (is_closed_) return give_back(piece, true);
  piece->next_free = released_;
  released_ = piece;
}

ZBPP_INLINE block* arena_core::take_released(arena_core const* lender) noexcept {
  block* taken = nullptr;
  for (auto** at = &released_; *at != nullptr;) {
    auto* const piece = *at;
    if (piece->lender->owner == lender) {
      *at = piece->next_free;
      piece->next_free = taken;
      taken = piece;
    } else {
      at = &piece->next_free;
    }
  }
  return taken;
}

ZBPP_INLINE void arena_core::keep_released(block* list) noexcept {
  while (list != nullptr) end_borrowed(std::exchange(list, list->next_free));
}

ZBPP_INLINE void arena_core::end_loans(bool is_closing) noexcept {
  is_closed_ = is_closed_ || is_closing;
  for (auto* list = std::exchange(released_, nullptr); list != nullptr;)
    give_back(std::exchange(list, list->next_free), true);
}

ZBPP_INLINE block* arena_core::carve(std::size_t size) {
  auto* const before = next_;
  auto const left_before = left_;
  bool const grows = size > left_;
  if (grows) {
    add_chunk(std::max({size, smallest_chunk, static_cast<std::size_t>(usage_.reserved) / 2}));
    ++usage_.growths;
  }
  auto& piece = next_block();
  piece.owner = this;
  piece.data = next_;
  piece.capacity = size;
  next_ += size;
  left_ -= size;
  // A large piece, as a stage takes in warm_up(), does not cost what was reserved for others.
  if (grows && left_ < left_before) {
    next_ = before;
    left_ = left_before;
  }
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
