// SPDX-License-Identifier: Apache-2.0
//
// The memory of one rank: an arena that is as large as the plan says, and the shared handles that
// own pieces of it. A piece goes back to the arena when its last handle goes, so memory is freed by
// scope. One rank's arena is used by one thread at a time; handles are not atomic.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/detail/poison.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace zbpp {

/// Says what a buffer counts as: what passes keep, what crosses an edge, or what a transport sets
/// aside for messages that have not come yet.
enum class purpose : std::uint8_t { activation, edge, receive };

/// Tells how much of an arena is used, in bytes as asked for.
struct arena_usage {
  std::array<bytes, 3> in_use{};  ///< by `purpose`
  std::array<bytes, 3> peak{};    ///< by `purpose`, since the last `reset_peak`
  bytes reserved = 0;             ///< taken from the system so far
  int growths = 0;                ///< how often more was taken than `reserve` had set aside

  /// @return bytes in use now, for one purpose
  [[nodiscard]] bytes now(purpose what) const noexcept {
    return in_use[static_cast<std::size_t>(what)];
  }
  /// @return the most bytes in use at one time, for one purpose
  [[nodiscard]] bytes most(purpose what) const noexcept {
    return peak[static_cast<std::size_t>(what)];
  }
};

/// Says where the memory of an arena comes from; the heap unless told otherwise.
struct memory_source {
  /// Gives `size` bytes, aligned to `alignment`. @throws std::bad_alloc
  void* (*take)(std::size_t size, std::uintptr_t context) = [](std::size_t size, std::uintptr_t) {
    return ::operator new(size, std::align_val_t{64});
  };
  /// Takes them back.
  void (*give_back)(void* memory, std::size_t size, std::uintptr_t context) noexcept =
      [](void* memory, std::size_t, std::uintptr_t) noexcept {
        ::operator delete(memory, std::align_val_t{64});
      };
  std::uintptr_t context = 0;  ///< handed to both; what it names outlives all buffers
  std::size_t alignment = 64;  ///< of every buffer, in bytes; a multiple of 64
  bool is_host = true;         ///< whether the host may touch the memory
};

namespace detail {

class arena_core;

/// Describes a piece of an arena. It stands apart from the data, which the host may be unable to
/// touch.
struct alignas(64) block {
  arena_core* owner = nullptr;
  block* next_free = nullptr;
  std::byte* data = nullptr;
  std::size_t size = 0;      // as asked for
  std::size_t capacity = 0;  // as rounded
  std::uint32_t references = 0;
  std::uint16_t size_class = 0;
  purpose what{};
};

/// Keeps free blocks in lists by size, sixteen sizes below 1 KiB and eight for each doubling above,
/// so that finding one takes constant time and rounding wastes at most an eighth.
class arena_core {
 public:
  explicit arena_core(memory_source source) noexcept : source_(source) {}
  arena_core(arena_core const&) = delete;
  arena_core& operator=(arena_core const&) = delete;

  [[nodiscard]] block* allocate(std::size_t size, purpose what) {
    if (size > most) throw std::bad_alloc();
    auto const [size_class, lines] = round_up(size);
    auto* found = free_[size_class];
    if (found != nullptr) {
      free_[size_class] = found->next_free;
    } else {
      found = carve(lines * source_.alignment);
      found->size_class = static_cast<std::uint16_t>(size_class);
    }
    found->size = size;
    found->references = 1;
    found->what = what;
    if (source_.is_host) unpoison(found->data, found->size);
    count(what, static_cast<bytes>(size));
    ++holders_;
    return found;
  }

  void release(block* piece) noexcept {
    count(piece->what, -static_cast<bytes>(piece->size));
    piece->next_free = free_[piece->size_class];
    free_[piece->size_class] = piece;
    if (source_.is_host) poison(piece->data, piece->capacity);
    drop();
  }

  void retag(block* piece, purpose what) noexcept {
    count(piece->what, -static_cast<bytes>(piece->size));
    piece->what = what;
    count(what, static_cast<bytes>(piece->size));
  }

  // The rest stays part of the piece, but nobody may use it.
  void truncate(block* piece, std::size_t size) noexcept {
    count(piece->what, static_cast<bytes>(size) - static_cast<bytes>(piece->size));
    if (source_.is_host) poison(piece->data + size, piece->size - size);
    piece->size = size;
  }

  void count(purpose what, bytes change) noexcept {
    auto const i = static_cast<std::size_t>(what);
    usage_.in_use[i] += change;
    usage_.peak[i] = std::max(usage_.peak[i], usage_.in_use[i]);
  }

  // Rounding takes at most an eighth.
  void reserve(std::size_t size) {
    if (size > most / 2) throw std::bad_alloc();
    if (size > 0) add_chunk(size + size / 8 + smallest_chunk);
  }
  void reset_peak() noexcept { usage_.peak = usage_.in_use; }

  // Puts the free pieces of a device into the order in which they were made, so that a step like
  // the one before finds each of them in the same place.
  void sort_free() noexcept {
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
  [[nodiscard]] arena_usage const& usage() const noexcept { return usage_; }

  // The arena itself and every piece in use hold the memory.
  void drop() noexcept {
    if (--holders_ == 0) delete this;
  }

 private:
  static constexpr std::size_t most = ~std::size_t{0} / 4;  // so that rounding up cannot overflow
  static constexpr std::size_t smallest_chunk = 64 * 1024;
  static constexpr std::size_t blocks_at_once = 256;

  struct chunk {
    std::byte* begin;
    std::size_t size;
  };
  struct rounded {
    std::size_t size_class;
    std::size_t lines;
  };

  ~arena_core() {
    for (auto const& c : chunks_) {
      if (source_.is_host) unpoison(c.begin, c.size);
      source_.give_back(c.begin, c.size, source_.context);
    }
  }

  [[nodiscard]] rounded round_up(std::size_t size) const noexcept {
    auto const line = source_.alignment;
    auto const lines = std::max<std::size_t>(1, (size + line - 1) / line);
    if (lines <= 16) return {lines - 1, lines};
    auto const shift = static_cast<std::size_t>(std::bit_width(lines - 1)) - 4;
    auto const step = (lines - 1) >> shift;  // 8 to 15
    return {16 + (shift - 1) * 8 + (step - 8), (step + 1) << shift};
  }

  [[nodiscard]] block* carve(std::size_t size) {
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

  [[nodiscard]] block& next_block() {
    if (blocks_left_ == 0) {
      blocks_.push_back(std::make_unique<block[]>(blocks_at_once));
      blocks_left_ = blocks_at_once;
    }
    return blocks_.back()[blocks_at_once - blocks_left_--];
  }

  void add_chunk(std::size_t size) {
    chunks_.reserve(chunks_.size() + 1);
    auto* begin = static_cast<std::byte*>(source_.take(size, source_.context));
    chunks_.push_back({begin, size});
    usage_.reserved += static_cast<bytes>(size);
    next_ = begin;
    left_ = size;
    if (source_.is_host) poison(begin, size);
  }

  memory_source source_;
  std::array<block*, 512> free_{};
  std::vector<chunk> chunks_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
  std::vector<std::unique_ptr<block[]>> blocks_;
  std::size_t blocks_left_ = 0;  // of the last ones
  arena_usage usage_;
  std::size_t holders_ = 1;
};

}  // namespace detail

/// Owns a piece of a rank's arena together with its copies; empty when default-made.
///
/// Data is aligned to 64 bytes or more and not initialised. A buffer is used on its rank's thread
/// only.
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

  /// Lets go of the memory; it is free once no copy holds it.
  void reset() noexcept {
    auto* piece = std::exchange(piece_, nullptr);
    if (piece != nullptr && --piece->references == 0) piece->owner->release(piece);
  }

  /// @return whether it holds memory
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
  void retag(purpose what) const noexcept {
    if (piece_ != nullptr) piece_->owner->retag(piece_, what);
  }
  /// Keeps the first `size` bytes, and counts only those from now on. The rest cannot be used again
  /// before the memory is free. Does nothing when there are no more than `size`.
  void truncate(std::size_t size) const noexcept {
    if (size < this->size()) piece_->owner->truncate(piece_, size);
  }

 private:
  friend class arena;
  explicit buffer(detail::block* piece) noexcept : piece_(piece) {}

  detail::block* piece_ = nullptr;
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
    if (core_ != nullptr) core_->drop();
  }

  /// Takes memory for about `size` bytes of buffers from the system now. Many small pieces, or
  /// sizes that change, may still make the arena grow; a step that is like the one before never
  /// does.
  /// @throws std::bad_alloc, also when `size` is negative
  void reserve(bytes size) { core_->reserve(static_cast<std::size_t>(size)); }

  /// Gives a piece of memory, from what was freed before if any fits.
  /// @throws std::bad_alloc when the arena has to grow and cannot
  /// @complexity O(1), no allocation once as much has been in use before
  [[nodiscard]] buffer allocate(std::size_t size, purpose what = purpose::activation) {
    return buffer(core_->allocate(size, what));
  }

  /// Counts `change` bytes that are set aside for a message which has not come yet.
  void count_edge(bytes change) noexcept { core_->count(purpose::edge, change); }

  /// Starts measuring the peak anew, from what is in use now.
  void reset_peak() noexcept { core_->reset_peak(); }
  /// Starts measuring the peak anew. On a device, requests like those of the step before are given
  /// the same places from now on, as captured work has them in it.
  void start_step() noexcept {
    core_->reset_peak();
    core_->sort_free();
  }
  /// @return what is in use, and the most that was
  [[nodiscard]] arena_usage const& usage() const noexcept { return core_->usage(); }

 private:
  detail::arena_core* core_;
};

}  // namespace zbpp
