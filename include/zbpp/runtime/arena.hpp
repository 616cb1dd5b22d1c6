// SPDX-License-Identifier: Apache-2.0
//
// The memory of one rank: an arena that is as large as the plan says, and the shared handles that
// own pieces of it. A piece goes back to the arena when its last handle goes, so memory is freed by
// scope. One rank's arena is used by one thread at a time; handles are not atomic.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/detail/arena_core.hpp>
#include <zbpp/runtime/memory_source.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

namespace zbpp {

/// Owns a piece of a rank's arena together with its copies; empty when default-made.
///
/// Data is aligned to 64 bytes or more and not initialised. For the thread of its rank only.
class buffer {
 public:
  buffer() noexcept = default;
  buffer(buffer const& other) noexcept : piece_(other.piece_) {
    if (piece_ != nullptr) ++piece_->references;
  }
  buffer(buffer&& other) noexcept : piece_(std::exchange(other.piece_, nullptr)) {}
  buffer& operator=(buffer other) noexcept {
    std::swap(piece_, other.piece_);
    return *this;
  }
  ~buffer() { reset(); }

  /// Releases the memory; it is free once no copy holds it.
  void reset() noexcept {
    auto* piece = std::exchange(piece_, nullptr);
    if (piece != nullptr && --piece->references == 0) piece->owner->release(piece);
  }

  [[nodiscard]] explicit operator bool() const noexcept { return piece_ != nullptr; }
  /// @return the first byte; null when empty
  [[nodiscard]] std::byte* data() const noexcept {
    return piece_ == nullptr ? nullptr : piece_->data;
  }
  /// @return how many bytes there are; 0 when empty
  [[nodiscard]] std::size_t size() const noexcept { return piece_ == nullptr ? 0 : piece_->size; }
  /// @return the bytes as values of a trivial type; a rest smaller than one value is left out
  template <class Value>
  [[nodiscard]] std::span<Value> as() const noexcept {
    static_assert(std::is_trivially_copyable_v<Value> && alignof(Value) <= 64);
    return {reinterpret_cast<Value*>(data()), size() / sizeof(Value)};
  }
  /// @return how many handles share the memory; 0 when empty
  [[nodiscard]] std::uint32_t use_count() const noexcept {
    return piece_ == nullptr ? 0 : piece_->references;
  }
  /// Counts the memory under another purpose from now on.
  void retag(purpose use) const noexcept {
    if (piece_ != nullptr) piece_->owner->retag(piece_, use);
  }
  /// Keeps the first `size` bytes, and counts only those from now on. The rest cannot be used again
  /// before the memory is free. Does nothing when there are no more than `size`.
  void truncate(std::size_t size) const noexcept {
    if (size < this->size()) piece_->owner->truncate(piece_, size);
  }

 private:
  friend class arena;
  friend class object;
  explicit buffer(detail::block* piece) noexcept : piece_(piece) {}

  detail::block* piece_ = nullptr;
};

/// Counts memory that a rank has from elsewhere, such as a tensor of a library with an allocator of
/// its own, as long as it lives; empty when default-made. It is used on its rank's thread only.
class external_memory {
 public:
  external_memory() noexcept = default;
  external_memory(external_memory&& other) noexcept
      : core_(std::exchange(other.core_, nullptr)), size_(other.size_), what_(other.what_) {}
  external_memory& operator=(external_memory other) noexcept {
    std::swap(core_, other.core_);
    std::swap(size_, other.size_);
    std::swap(what_, other.what_);
    return *this;
  }
  ~external_memory() { reset(); }

  /// Counts it no longer.
  void reset() noexcept {
    if (core_ != nullptr) std::exchange(core_, nullptr)->release_external(what_, size_);
  }
  [[nodiscard]] bytes size() const noexcept { return core_ == nullptr ? 0 : size_; }

 private:
  friend class arena;
  external_memory(detail::arena_core* core, purpose use, bytes size) noexcept
      : core_(core), size_(size), what_(use) {
    core_->hold_external(what_, size_);
  }

  detail::arena_core* core_ = nullptr;
  bytes size_ = 0;
  purpose what_ = purpose::activation;
};

/// Holds buffers that a rank has borrowed and let go of, and that its lender must not use yet. They
/// go back when it is cleared or destroyed.
class released_loans {
 public:
  released_loans() noexcept = default;
  released_loans(released_loans&& other) noexcept : first_(std::exchange(other.first_, nullptr)) {}
  released_loans& operator=(released_loans other) noexcept {
    std::swap(first_, other.first_);
    return *this;
  }
  ~released_loans() { clear(); }

  /// Returns the loans; the lender's stream already waits for every reader.
  void clear() noexcept {
    while (first_ != nullptr)
      detail::arena_core::give_back(std::exchange(first_, first_->next_free), false);
  }

 private:
  friend class arena;
  explicit released_loans(detail::block* first) noexcept : first_(first) {}

  detail::block* first_ = nullptr;
};

/// Owns the memory of one rank. Buffers may outlive it: the memory goes with the last of them.
class arena {
 public:
  /// Makes an arena that takes its memory from `source`, in large chunks.
  explicit arena(memory_source source = {}) : core_(new detail::arena_core(source)) {}
  arena(arena&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
  arena& operator=(arena other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }
  ~arena() {
    if (core_ == nullptr) return;
    core_->end_pair();
    core_->end_loans(true);
    core_->drop();
  }

  /// Takes memory for about `size` bytes of buffers from the system now. Many small pieces, or
  /// sizes that change, may still make the arena grow; a step like the last does not.
  /// @throws std::bad_alloc, also when `size` is negative
  void reserve(bytes size) { core_->reserve(static_cast<std::size_t>(size)); }

  /// Gives a piece of memory, from what was freed before if any fits.
  /// @throws std::bad_alloc when the arena has to grow and cannot
  /// @complexity O(1), no allocation once as much has been in use before
  [[nodiscard]] buffer allocate(std::size_t size, purpose use = purpose::activation) {
    return buffer(core_->allocate(size, use));
  }

  /// Counts memory that comes from elsewhere, while the result lives.
  /// @throws error (bad_argument) when `size` is negative
  [[nodiscard]] external_memory count_external(bytes size, purpose use = purpose::activation) {
    detail::require(size >= 0, "count_external takes a number of bytes from 0");
    return {core_, use, size};
  }

  /// Gives another rank's buffer, without a copy, for a transport between ranks of one device and
  /// one thread. What the handles count is up to each rank. When the last one here goes, the memory
  /// is not free yet: kernels may still use it. Its lender gets it back by `take_released`.
  /// @return an empty buffer for an empty one
  /// @throws std::bad_alloc
  [[nodiscard]] buffer borrow(buffer const& from) {
    return from ? buffer(core_->borrow(from.piece_)) : buffer();
  }
  /// Takes what this rank has borrowed from another and let go of, for a message to that one: it
  /// may have its memory back once it waits for what this rank has done so far.
  [[nodiscard]] released_loans take_released(arena const& lender) noexcept {
    return released_loans(core_->take_released(lender.core_));
  }
  /// Takes them back from a message that was never received.
  void keep_released(released_loans&& loans) noexcept {
    core_->keep_released(std::exchange(loans.first_, nullptr));
  }
  /// Gives back all that this rank has borrowed and let go of; when nothing uses it any more.
  void end_loans() noexcept { core_->end_loans(false); }

  /// Begins the first or the second of two passes that may run at the same time. What either lets
  /// go of is in use until both end: its memory goes to neither, unless to the pass that took it.
  void begin_half() noexcept { core_->begin_half(); }
  /// Ends both, if they have begun.
  void end_pair() noexcept { core_->end_pair(); }

  /// Counts `change` bytes that are set aside for a message which has not arrived yet.
  void count_edge(bytes change) noexcept { core_->count(purpose::edge, change); }

  /// Starts measuring the peak again, from what is in use now.
  void reset_peak() noexcept { core_->reset_peak(); }
  /// Starts measuring the peak again. On a device, requests like those of the step before get
  /// the same places from now on, because captured work holds their addresses.
  void start_step() noexcept {
    core_->reset_peak();
    core_->sort_free();
  }
  /// Counts a peak that was measured before, of a step like this one.
  void note_peak(arena_usage const& before) noexcept { core_->note_peak(before); }
  /// Tells which pieces are in use: the same number as long as they stay the same.
  [[nodiscard]] std::uintptr_t mark_of_pieces() const noexcept { return core_->mark_of_pieces(); }
  [[nodiscard]] arena_usage const& usage() const noexcept { return core_->usage(); }

 private:
  friend class object;

  detail::arena_core* core_;
};

}  // namespace zbpp
